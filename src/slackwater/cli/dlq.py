"""`dlq list` and `dlq show`: count and print the dead letters of a config, without Spark."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from slackwater.cli.dead_letter_origins import find_dead_letter_origins
from slackwater.config import toml
from slackwater.core.file_uris import file_uri_to_path
from slackwater.core.humanize import format_age, format_datetime, plural

SHOWN_BYTES = 64  # how many bytes to show of a value that is not text


def list_dead_letters(file: Path) -> None:
    """Print the number of dead letters by reason and source, and how many of them are open or applied."""
    from slackwater.runner.dead_letter_reader import count_letters

    pipeline = toml.load(file)
    counts_frame = count_letters(pipeline)
    if counts_frame.is_empty():
        print(f"{pipeline.name}: no dead letters")
        return
    counts = ("letters", "open", "applied", "tries")
    head = ("reason", "source", *counts, "first event", "last event")
    rows = [
        (
            r["reason"] or "-",
            r["source"] or "-",
            *(f"{r[c]:,}" for c in counts),
            _format_time(r["first"]),
            _format_time(r["last"]),
        )
        for r in counts_frame.to_dicts()
    ]
    rows.append(("total", "", *(f"{counts_frame[c].sum():,}" for c in counts), "", ""))
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    for row in (head, *rows):
        cells = [
            c.rjust(w) if head[n] in counts else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print(escape_control_characters("  ".join(cells)).rstrip())


def show_dead_letters(file: Path, limit: int, reason: str | None, source: str | None, key: Sequence[str] = ()) -> None:
    """Print the newest dead letters, with their details and their content as text."""
    from slackwater.query.key_history import format_dead_letter_keys
    from slackwater.query.locate_state import locate_store
    from slackwater.runner.dead_letter_reader import LetterFilter, add_attempts, read_newest

    pipeline = toml.load(file)
    keys = None
    if key:
        with closing(locate_store(pipeline)) as store:
            keys = format_dead_letter_keys(pipeline, store, key)
    newest = read_newest(pipeline, LetterFilter(reason=reason, source=source, limit=limit, group_keys=keys))
    if newest.is_empty():
        print(f"{pipeline.name}: no dead letters{' of this key' if key else ''}")
        return
    letters = add_attempts(pipeline, newest).to_dicts()
    for n, (letter, (line, why)) in enumerate(zip(letters, find_dead_letter_origins(pipeline, letters), strict=True)):
        if n:
            print()
        print("\n".join(_letter_lines(letter, line, why)))


def _letter_lines(letter: Mapping[str, Any], line: int | None = None, why: str = "") -> Iterator[str]:
    """Yield the lines that describe a dead letter.

    `line`: the line number of the row in its file. `why`: the value that made the row bad, if known.
    """
    place = file_uri_to_path(letter["file"]) if letter["file"] else letter["source"] or "-"
    place += "" if line is None else f", line {line:,}"
    if letter["topic"] is not None:
        place = f"{letter['topic']}-{letter['partition']} at offset {letter['offset']}"
    yield escape_control_characters(
        f"{letter['reason']}  {place}  epoch {letter['epoch']}  {_format_time(letter['event_time'])}"
    )
    if why:
        yield escape_control_characters(f"  because  {why}")
    if letter.get("__applied"):
        yield "  applied"
    elif letter.get("__tries"):
        yield f"  tried    {plural(letter['__tries'], 'time')}, not applied"
    if letter["late_us"] is not None:
        holder_text = f', held back by "{letter["watermark_source"]}"' if letter["watermark_source"] else ""
        idle = ", while it was idle" if letter["cause"] == "idle" else ""
        yield escape_control_characters(
            f"  late     by {format_age(letter['late_us'])}: watermark {_format_time(letter['watermark'])}{holder_text}{idle}"
        )
        starts = ", ".join(json.loads(letter["windows"] or "[]"))
        yield escape_control_characters(
            f"  missed   {plural(letter['windows_missed'], 'window')}{f': {starts}' if starts else ''}"
        )
    for header in json.loads(letter["headers"] or "[]"):
        value = None if header.get("value") is None else base64.b64decode(header["value"])
        yield escape_control_characters(f"  header   {header.get('key')} = {' '.join(readable_content(value))}")
    for name in ("key", "value"):
        if letter[name] is not None or name == "value":
            first, *more = readable_content(letter[name])
            yield f"  {name:<9}{first}"
            yield from (f"{'':<11}{line}" for line in more)


def readable_content(value: bytes | None) -> list[str]:
    """Format bytes as lines for users: JSON with indentation, other text unchanged, anything else in hexadecimal."""
    if value is None:
        return ["NULL"]
    try:
        text = value.decode()
    except UnicodeDecodeError:
        cut = f" … {len(value)} bytes" if len(value) > SHOWN_BYTES else ""
        return [f"0x{value[:SHOWN_BYTES].hex()}{cut}"]
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict | list):
        text = json.dumps(parsed, indent=2, ensure_ascii=False)
    return [escape_control_characters(line) for line in text.split("\n")]


def escape_control_characters(text: str) -> str:
    """Escape all non-printable characters, so that a terminal does not interpret them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _format_time(time: dt.datetime | None) -> str:
    return "-" if time is None else format_datetime(time) + "Z"
