"""`why`: why there is no output yet, from the state alone, beside a running pipeline."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slackwater.cli.text import ago, plural, table
from slackwater.config import toml
from slackwater.core.lateness import said
from slackwater.core.time import iso
from slackwater.errors import StartError
from slackwater.query.why import Clock, Need, OfKey, Open, Why, why
from slackwater.sources.changed import text as changed_text

PARTITIONS = 4  # that are named in one line


def why_file(file: Path, key: Sequence[str], as_json: bool) -> None:
    """Print the answer. Raises ConfigError, or StartError where there is nothing to look at."""
    from slackwater.runner.assemble import store_of

    pipeline = toml.load(file)
    if pipeline.state_store is None or not pipeline.state_store.durable:
        raise StartError(
            f"{pipeline.name}: its state is in memory, where only the runner can look; "
            'set [state_store] kind = "files" or "postgres"'
        )
    store = store_of(pipeline)
    try:
        found = why(pipeline, store, time.time_ns() // 1000, key)
    finally:
        store.close()
    if as_json:
        print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
        return
    print("\n".join(lines(found, str(file))))


def lines(w: Why, file: str) -> Iterator[str]:
    """The answer as text."""
    published = "published" if w.is_published else "NOT YET PUBLISHED"
    running = (
        f"{w.runner}; what it has seen since the commit is not in here"
        if w.runner
        else f"none is up, so nothing moves; start it with: slackwater run {file}"
    )
    behind = "" if w.watermark_us is None else f", {ago(w.now_us - w.watermark_us)} behind the clock"
    yield f"{w.pipeline}: epoch {w.epoch}, committed {iso(w.committed_us)}, {ago(w.now_us - w.committed_us)} ago, {published}"
    yield from table(
        [
            ["runner", running],
            ["watermark", _time(w.watermark_us) + behind],
            ["held by", _held(w)],
        ]
    )
    yield ""
    yield from table(
        [["source", "newest event", "lateness", "watermark", "when it was committed"], *map(_row, w.clocks)]
    )
    for source, told in w.changed_files.items():
        yield changed_text(source, list(told["last"]), int(told["count"]))
    if (advice := said(w.lateness)) is not None:
        yield advice
    yield ""
    if w.kept is not None:
        yield w.kept
    else:
        yield from _waiting(w, file) if w.kind == "join" else _following(w)
    if w.key is not None:
        yield ""
        yield from _of_key(w, w.key)


def _held(w: Why) -> str:
    h = w.holder
    if h is None:
        text = "nobody: all sources are idle, it stays where it is until one has an event"
        if w.idle_close_us is not None:
            quiet = min(c.quiet_us for c in w.clocks if c.partition is None)
            text = f"nobody: all sources are idle; it runs on after a silence of {ago(w.idle_close_us)}, so far {ago(quiet)}"
        return text
    since = (
        f"quiet for {ago(h.quiet_us)}, since {iso(w.committed_us - h.quiet_us)}"
        if h.quiet_us
        else "it had rows in this epoch"
    )
    if h.watermark_us is None:
        left = f"; it counts as idle in {ago(h.idle_in_us)} of quiet" if h.idle_in_us else ""
        return f"{_name(h)}: no event yet, {since}{left}"
    caught = "" if w.watermark_us is None or h.watermark_us >= w.watermark_us else "; it was idle and has not caught up"
    return f"{_name(h)}: {since}{caught}"


def _name(c: Clock) -> str:
    return f'source "{c.source}"' + (f", partition {c.partition}" if c.partition is not None else "")


def _row(c: Clock) -> list[str]:
    name = c.source if c.partition is None else f"  {c.partition}"
    if c.idle:
        state = f"idle, quiet for {ago(c.quiet_us)}"
    else:
        state = f"quiet for {ago(c.quiet_us)}, idle in {ago(c.idle_in_us or 0)}" if c.quiet_us else "had rows"
    return [name, _time(c.max_event_us), ago(c.lateness_us), _time(c.watermark_us), state]


def _waiting(w: Why, file: str) -> Iterator[str]:
    """What a join keeps, and when it comes out."""
    yield from table(
        [
            ["side", "source", "rows kept", "each until the watermark is past", "all of them at watermark"],
            *(
                [
                    s.side,
                    s.source,
                    f"{s.rows:,}",
                    f"its time + {ago(s.keep_us)}",
                    "" if s.over_us is None else _time(s.over_us),
                ]
                for s in w.sides
            ),
        ]
    )
    yield "a pair comes out in the epoch that reads the second of its rows"
    if alone := " and ".join(s.side for s in w.sides if s.outer):
        yield f"a row without a partner, of the {alone} side, comes out once its wait is over"
    if w.then_us is not None:
        yield f"the window over what it emits is at watermark {iso(w.then_us)}; its windows: slackwater state show {file}"


def _following(w: Why) -> Iterator[str]:
    what = "session" if w.kind == "session" else "window"
    of = f" of {plural(w.open_keys, 'key')}" if w.open_keys is not None else ""
    if not w.next:
        yield f"no {what} is open: there is nothing to come out"
        return
    yield f"{plural(w.open_windows, f'open {what}')}{of}; the next to close:"
    keys = list(w.next[0].key or {})
    counted = ["keys"] if w.next[0].groups is not None else ["rows"] if w.next[0].rows is not None else []
    yield from table(
        [
            ["", *keys, "start", *counted, "closes at watermark", "that is once"],
            *(
                [
                    "",
                    *(_shown(v) for v in (o.key or {}).values()),
                    iso(o.start_us),
                    *([f"{o.rows if o.groups is None else o.groups:,}"] if counted else []),
                    iso(o.closes_us),
                    _once(w, o),
                ]
                for o in w.next
            ),
        ]
    )


def _of_key(w: Why, k: OfKey) -> Iterator[str]:
    what = "session" if w.kind == "session" else "window"
    name = ", ".join(f"{n}={_shown(v)}" for n, v in k.key.items())
    yield f"key {name}: " + (plural(len(k.open), f"open {what}") if k.open else f"no {what} is open")
    for o in k.open:
        last = "" if o.last_us is None else f", last event {iso(o.last_us)}"
        rows = "" if o.rows is None else f", {plural(o.rows, 'row')}"
        yield f"  {what} from {iso(o.start_us)}{last}{rows}"
        behind = (
            "there is no watermark yet"
            if w.watermark_us is None
            else f"the watermark is {ago(o.closes_us - w.watermark_us)} behind that"
        )
        yield f"    closes at watermark {iso(o.closes_us)}; {behind}"
        if o.reason == "cap":
            yield "    it is cut there, at max_session_duration_ms; until then an earlier row may still move the cut"
        elif what == "session":
            yield "    a row within gap_ms of it, as long as it is open, makes it longer"
        yield f"    that is once {_once(w, o)}"
    if k.floor_us is not None:
        yield f"  floor {iso(k.floor_us)}: its closed sessions reached that far, rows at or below are late"
    if k.late_before_us is not None:
        joins = " unless they join an open session" if what == "session" else ""
        yield f"  rows before {iso(k.late_before_us)} are late{joins}"


def _once(w: Why, o: Open) -> str:
    """What has to happen, sources that wait for the same time together."""
    times = sorted({n.event_us for n in o.needs})
    either = " or " if w.holder is None else " and "
    parts = [f"{either.join(_place(n) for n in o.needs if n.event_us == t)} at or after {iso(t)}" for t in times]
    wanted = f"an event is seen on {either.join(parts)}"
    if o.silence_us is None:
        return wanted
    return f"{wanted}, or after {ago(max(o.silence_us, 0))} more without any"


def _place(n: Need) -> str:
    names = ", ".join(n.partitions[:PARTITIONS])
    more = f" and {len(n.partitions) - PARTITIONS} more" if len(n.partitions) > PARTITIONS else ""
    of = f" (each of {names}{more})" if len(n.partitions) > 1 else f" (partition {names})" if names else ""
    return f'"{n.source}"{of}'


def _time(us: int | None) -> str:
    return "none yet" if us is None else iso(us)


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(value)
