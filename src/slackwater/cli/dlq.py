"""`dlq` and `outbox`: show or replay dead letters, and show, publish or skip a pending epoch. A replay uses Spark."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.cli import output as views
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.connectors import bad_value_search
from slackwater.core.humanize import format_age, format_datetime, format_iso, plural
from slackwater.core.paths import file_uri_to_path
from slackwater.errors import StartError, Topic
from slackwater.operators.dead_letters import LATE

if TYPE_CHECKING:
    import polars as pl

    from slackwater.dead_letters.replay import ReplayResult

# -- list and show -----------------------------------------------------------------------------------------------------


SHOWN_BYTES = 64  # number of bytes to show of a value that is not text


def list_dead_letters(file: Path) -> None:
    """Print the number of dead letters for each reason and source, and how many of them are open and how many were applied."""
    from slackwater.dead_letters.dead_letter_reader import count_dead_letters

    pipeline = toml.load(file)
    counts_frame = count_dead_letters(pipeline)
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
    """Print the newest dead letters, with their details and their content as text.

    Args:
        file: The config.
        limit: The maximum number of dead letters.
        reason: Print only dead letters with this reason; None for all reasons.
        source: Print only dead letters of this source; None for all sources.
        key: Print only late rows of this key, as `name=value` per column; empty for all keys.
    """
    from slackwater.core.dead_letter_columns import DeadLetterFilter
    from slackwater.dead_letters.dead_letter_reader import add_attempts, read_newest
    from slackwater.query.state_locator import locate_store
    from slackwater.query.why_report_builder import format_dead_letter_keys

    pipeline = toml.load(file)
    keys = None
    if key:
        with closing(locate_store(pipeline)) as store:
            keys = format_dead_letter_keys(pipeline, store, key)
    newest = read_newest(pipeline, DeadLetterFilter(reason=reason, source=source, limit=limit, group_keys=keys))
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

    `line`: the line number of the row in its file, if known. `why`: which value made the row bad, if known.
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
    """Format bytes as lines of text: JSON is indented, other text is unchanged, and binary data is hexadecimal."""
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
    """Escape all characters that are not printable, so that a terminal does not interpret them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _format_time(time: dt.datetime | None) -> str:
    return "-" if time is None else format_datetime(time) + "Z"


# -- the line and the value that caused a dead letter ------------------------------------------------------------------


UNDECODABLE, NO_TIME, FUTURE = "undecodable", "no event time", "future"


def find_dead_letter_origins(pipeline: Pipeline, letters: Sequence[Mapping[str, Any]]) -> list[tuple[int | None, str]]:
    """Return, for each dead letter, the line number of its row in the file and a description of the bad value.

    An unknown line number is None, and an unknown description is empty.
    """
    sources = {s.name: s for s in pipeline.sources}
    places = [
        (sources.get(letter["source"]), file_uri_to_path(letter["file"]) if letter["file"] else None, _record(letter))
        for letter in letters
    ]
    causes = [_find_cause(pipeline, sources.get(letter["source"]), letter) for letter in letters]
    return list(zip(bad_value_search.find_line_numbers(places), causes, strict=True))


def _find_cause(pipeline: Pipeline, source: Source | None, letter: Mapping[str, Any]) -> str:
    text = _decode(letter["value"])
    if source is None or text is None or letter["reason"] == LATE:
        return ""
    if letter["reason"] == UNDECODABLE:
        return bad_value_search.describe_undecodable_row(source, text)
    if letter["reason"] in (NO_TIME, FUTURE):
        stage_pipeline = next(
            (one for one in pipeline.stage_pipelines.values() if any(s.name == source.name for s in one.sources)),
            pipeline,
        )
        return bad_value_search.describe_event_time(
            stage_pipeline.transform.step.event_time_column, bad_value_search.parse_json_object(text)
        )
    return ""


def _record(letter: Mapping[str, Any]) -> bad_value_search.Record:
    text = _decode(letter["value"])
    if text is None:
        return bad_value_search.Record()
    return (
        bad_value_search.Record(text)
        if letter["reason"] == UNDECODABLE
        else bad_value_search.Record(row=bad_value_search.parse_json_object(text))
    )


def _decode(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


# -- replay ------------------------------------------------------------------------------------------------------------


def replay_file(file: Path, reason: str | None, epoch: str | None, limit: int | None, dry: bool) -> None:
    """Replay dead letters, and print how many were applied and why the others were not.

    Args:
        file: The config.
        reason: Replay only dead letters with this reason; None for all reasons.
        epoch: The range of epochs whose dead letters are replayed; see `parse_epoch_range`.
        limit: The maximum number of dead letters; None for no limit.
        dry: Whether to report what would happen without applying anything.
    """
    import polars as pl

    from slackwater.runner.replay_runner import replay_dead_letters

    first, last = parse_epoch_range(epoch)
    pipeline = toml.load(file)

    def choose(letters: pl.DataFrame) -> pl.DataFrame:
        chosen = letters if reason is None else letters.filter(pl.col("reason") == reason)
        chosen = chosen if first is None else chosen.filter(pl.col("epoch") >= first)
        return chosen if last is None else chosen.filter(pl.col("epoch") <= last)

    view = views.choose_view(0)
    try:
        outcome = replay_dead_letters(pipeline, choose, limit=limit, dry=dry, on_notice=view.notice)
    finally:
        view.close()
    print("\n".join(summary_lines(outcome, pipeline.name, dry)))


def parse_epoch_range(text: str | None) -> tuple[int | None, int | None]:
    """Parse `A..B`, `A..`, `..B` or `A` into the first and last epoch, both inclusive; None for an open end.

    Raises StartError for any other text, or if the range is empty.
    """
    if text is None:
        return None, None
    if match := re.fullmatch(r"(\d+)", text):
        return int(match[1]), int(match[1])
    match = re.fullmatch(r"(\d*)\.\.(\d*)", text)
    if match is None or not (match[1] or match[2]):
        raise StartError(
            f'--epoch "{text}" is not a range of epochs; expected A..B, A.., ..B or a single number', Topic.VALUE
        )
    first, last = (int(part) if part else None for part in match.groups())
    if first is not None and last is not None and first > last:
        raise StartError(
            f'--epoch "{text}" selects no epochs, because {first} is greater than {last}; expected A..B, where A is at '
            "most B",
            Topic.VALUE,
        )
    return first, last


def summary_lines(outcome: ReplayResult, name: str, dry: bool) -> Iterator[str]:
    """Yield the lines that summarize a replay.

    Args:
        outcome: The result of the replay.
        name: The name of the pipeline.
        dry: Whether the replay only reported what would happen.
    """
    written = sum(n for why, n in outcome.reasons.items() if why != "supersede")
    gone = outcome.reasons["supersede"]
    would = "would be applied" if dry else "applied"
    windows = f": {plural(written, 'window')} written, {gone:,} deleted" if written or gone else ""
    yield f"{name}: {plural(outcome.applied, 'letter')} {would}{windows}"
    if outcome.before:
        yield f"  {plural(outcome.before, 'letter')} had been applied before"
    for why, count in sorted(outcome.renewed.items(), key=lambda item: -item[1]):
        again = "a new letter replaces it" if count == 1 else "new letters replace them"
        yield f"  {plural(count, 'row')} now {why}: {again}"
    if outcome.refused:
        yield f"  {plural(outcome.refused, 'row')} refused: max_groups_per_window is reached"
    for why, count in sorted(outcome.remaining.items(), key=lambda item: -item[1]):
        yield f"  {plural(count, 'letter')} not applied: {why}"


# -- outbox --------------------------------------------------------------------------------------------------------------


def show_pending_epoch(file: Path, limit: int) -> None:
    """Print the pending epoch and the first rows of its output. `limit`: the maximum number of rows per target."""
    from slackwater.connectors.kafka.message_encoding import json_objects
    from slackwater.runner import pending_output

    pipeline = toml.load(file)
    pending = pending_output.read_pending_output(pipeline)
    if pending is None:
        print(f"{pipeline.name}: no epoch is pending: all committed epochs are published")
        return
    print(
        f"{pipeline.name}: epoch {pending.epoch} was committed at {format_iso(pending.committed_us)} but is not "
        f"published: {plural(pending.total, 'row')}, {plural(pending.letters, 'dead letter')}"
    )
    for names, rows in pending.rows.items():
        if not pending.has_one_target:
            print(f"for {' and '.join(map(escape_control_characters, names))}, {plural(rows.height, 'row')}:")
        for row in json_objects(rows.head(limit)):
            print(f"  {escape_control_characters(row.decode(errors='replace'))}")
        if rows.height > limit:
            print(f"  and {plural(rows.height - limit, 'row')} more; --limit shows more of them")
    print(f"try again:    slackwater outbox retry {file} {pending.epoch}")
    print(f"or skip it:   slackwater outbox skip {file} {pending.epoch}")


def retry_pending_epoch(file: Path, epoch: int) -> None:
    """Publish a pending epoch, as the next start would, without reading any input."""
    from slackwater.runner.pending_output import publish_pending

    pipeline = toml.load(file)
    view = views.choose_view(0)
    try:
        publish_pending(pipeline, epoch, on_notice=view.notice)
    finally:
        view.close()
    print(f"{pipeline.name}: epoch {epoch} is published")


def skip_pending_epoch(file: Path, epoch: int, to: Path | None) -> None:
    """Skip a pending epoch: store its rows elsewhere, so that the next start continues after this epoch.

    `to`: a directory for Parquet files; None stores the rows as dead letters.
    """
    from slackwater.runner.pending_output import skip_publish

    pipeline = toml.load(file)
    place = skip_publish(pipeline, epoch, to)
    print(
        f"{pipeline.name}: epoch {epoch} was skipped. Its rows are now in {place}. The next start continues "
        "after this epoch"
    )
