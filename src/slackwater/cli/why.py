"""`why`: explains from the state why a pipeline has no output yet, even while the pipeline is running."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slackwater.cli.dlq import escape_control_characters as visible
from slackwater.cli.output import align_rows
from slackwater.cli.results import format_cell
from slackwater.config import toml
from slackwater.connectors.files.planner import changed_files_text as changed_text
from slackwater.core.humanize import format_age, format_iso, plural
from slackwater.core.lateness_histogram import format_lateness_advice
from slackwater.core.row_format import format_value
from slackwater.errors import StartError, Topic
from slackwater.query.why_report import (
    KeyReport,
    OpenWindow,
    PublishedResults,
    RequiredEvent,
    StageReport,
    WatermarkReport,
    WhyReport,
    describe_watermark_wait,
    format_start_command,
    quote_stage,
)
from slackwater.query.why_report_builder import add_key_history, build_why_report

PARTITIONS = 4  # maximum number of partitions listed on one line


def print_why_report(file: Path, key: Sequence[str], as_json: bool, stage: str | None = None) -> None:
    """Print why a pipeline has no output yet.

    Args:
        file: The config.
        key: A key to report on as well, as `name=value` per column.
        as_json: Whether to print one JSON object instead of text.
        stage: The stage to report on; None for all stages.

    Raises ConfigError if the config is invalid, and StartError if the state is in memory or a name is unknown.
    """
    from slackwater.state.store_access import create_store

    pipeline = toml.load(file)
    if pipeline.state_store is None or not pipeline.state_store.durable:
        raise StartError(
            f"{pipeline.name}: its state is in memory, which only the runner can read; "
            'set [state_store] kind = "files" or "postgres"',
            Topic.NO_STATE,
        )
    store = create_store(pipeline)
    try:
        report = build_why_report(pipeline, store, time.time_ns() // 1000, key, stage, str(file))
        report = add_key_history(pipeline, store, report, key)
    finally:
        store.close()
    if as_json:
        print(json.dumps(dataclasses.asdict(report), ensure_ascii=False, default=format_value))
        return
    print("\n".join(format_report(report, str(file))))


def format_report(w: WhyReport, file: str | None) -> Iterator[str]:
    """Yield the text lines of a `why` report. `file`: the config; None for a pipeline that is defined in Python."""
    published = "published" if w.is_published else "NOT YET PUBLISHED"
    running = (
        f"{w.runner}; rows that it has read since the commit are not included"
        if w.runner
        else f"none is running, so nothing changes; start one with: {format_start_command(file)}"
    )
    behind = "" if w.watermark_us is None else f", {format_age(w.now_us - w.watermark_us)} behind the clock"
    yield f"{w.pipeline}: epoch {w.epoch}, committed {format_iso(w.committed_us)}, {format_age(w.now_us - w.committed_us)} ago, {published}"
    several = len(w.reported_stages) > 1
    yield from align_rows(
        [
            ["runner", running],
            ["watermark", _time(w.watermark_us) + behind],
            ["held by", _holder_text(w, w.committed_us)],
        ]
    )
    yield ""
    if several:
        heading = ["stage", "reads", "watermark", "waits for"]
        yield from align_rows(
            [
                heading,
                *(
                    [s.stage, ", ".join(s.reads), _time(s.watermark_us), describe_watermark_wait(s)]
                    for s in w.reported_stages
                ),
            ]
        )
        yield ""
    yield from align_rows(
        [["source", "newest event", "lateness", "watermark", "when it was committed"], *map(_clock_row, _clocks(w))]
    )
    for source, changed in w.changed_files.items():
        yield changed_text(source, list(changed["last"]), int(changed["count"]))
    for s in w.reported_stages:
        if (advice := format_lateness_advice(s.lateness)) is not None:
            yield f"stage {quote_stage(s.stage)}: {advice}" if several else advice
    for s in w.reported_stages:
        yield ""
        yield from _open_lines(s, f"stage {quote_stage(s.stage)}: " if several else "")
    for s in w.reported_stages:
        if s.key is not None:
            yield ""
            yield from _key_lines(s, s.key, f"stage {quote_stage(s.stage)}: " if several else "")
            yield from _history_lines(s.key, file)


def _clocks(w: WhyReport) -> list[WatermarkReport]:
    """Return the clocks to list: those of all inputs of a single stage, or the distinct clocks of all sources."""
    if not w.stages:
        return list(w.clocks)
    return list(dict.fromkeys(c for s in w.stages for c in s.clocks if not c.of_stage))


def _open_lines(s: StageReport, head: str) -> Iterator[str]:
    if s.kept is not None and s.next:
        yield from _timer_lines(s, head)
    elif s.kept is not None:
        yield f"{head}{s.kept}: no row is waiting, because each row is emitted in the epoch that reads it"
    elif s.kind == "join":
        yield from _join_lines(s, head)
    else:
        yield from _window_lines(s, head)


def _holder_text(w: StageReport, committed_us: int) -> str:
    h = w.holder
    if h is None and w.through:
        return f"nothing: {describe_watermark_wait(w)}; the watermark does not move until one of them has an event"
    if h is None:
        text = "nothing: all sources are idle; the watermark does not move until one has an event"
        if w.idle_close_us is not None:
            quiet = min(c.quiet_us for c in w.clocks if c.partition is None and not c.of_stage)
            text = f"nothing: all sources are idle; the watermark follows the clock after {format_age(w.idle_close_us)} of silence, so far {format_age(quiet)}"
        return text
    since = (
        f"quiet for {format_age(h.quiet_us)}, since {format_iso(committed_us - h.quiet_us)}"
        if h.quiet_us
        else "it had rows in this epoch"
    )
    if h.watermark_us is None:
        idle_note = f"; it counts as idle after {format_age(h.idle_in_us)} more of silence" if h.idle_in_us else ""
        return f"{describe_watermark_wait(w)}: no event yet, {since}{idle_note}"
    caught = (
        ""
        if w.through or w.watermark_us is None or h.watermark_us >= w.watermark_us
        else "; it was idle, and its newest event is still behind the watermark"
    )
    return f"{describe_watermark_wait(w)}: {since}{caught}"


def _clock_row(c: WatermarkReport) -> list[str]:
    name = c.source if c.partition is None else f"  {c.partition}"
    if c.of_stage:
        return [
            f"stage {name}",
            _time(c.max_event_us),
            format_age(c.lateness_us),
            _time(c.watermark_us),
            "what it emitted",
        ]
    if c.idle:
        state = f"idle, quiet for {format_age(c.quiet_us)}"
    else:
        state = (
            f"quiet for {format_age(c.quiet_us)}, idle in {format_age(c.idle_in_us or 0)}" if c.quiet_us else "had rows"
        )
    return [name, _time(c.max_event_us), format_age(c.lateness_us), _time(c.watermark_us), state]


def _join_lines(w: StageReport, head: str) -> Iterator[str]:
    """Yield lines that say how many rows a join stores, when they expire, and when it emits results."""
    if head:
        yield f"{head}{plural(sum(s.rows for s in w.sides), 'row')} kept by the join"
    yield from align_rows(
        [
            ["side", "source", "rows kept", "each until the watermark is past", "all are gone at watermark"],
            *(
                [
                    s.side,
                    s.source,
                    f"{s.rows:,}",
                    f"its time + {format_age(s.keep_us)}",
                    "" if s.over_us is None else _time(s.over_us),
                ]
                for s in w.sides
            ),
        ]
    )
    yield "a pair is emitted in the epoch that reads its second row"
    if outer_sides := " and ".join(s.side for s in w.sides if s.outer):
        yield f"a row of the {outer_sides} side without a partner is emitted when it leaves the state"


def _timer_lines(w: StageReport, head: str) -> Iterator[str]:
    """Yield lines that list the next timers of a keyed stage."""
    yield f"{head}{w.kept}; the next timers:"
    yield from align_rows(
        [
            ["", *(w.next[0].key or {}), "last event", "due at watermark", "due after"],
            *(
                [
                    "",
                    *(_key_value_text(v) for v in (o.key or {}).values()),
                    "" if o.last_us is None else format_iso(o.last_us),
                    format_iso(o.closes_us),
                    _closing_text(w, o),
                ]
                for o in w.next
            ),
        ]
    )


def _key_timer_lines(w: StageReport, k: KeyReport, head: str, name: str) -> Iterator[str]:
    """Yield lines that list the timers of one key."""
    yield f"{head}key {name}: {plural(len(k.open), 'timer') if k.open else 'no timer is set'}"
    for o in k.open:
        last = "" if o.last_us is None else f", last event {format_iso(o.last_us)}"
        yield f"  due at watermark {format_iso(o.closes_us)}{last}"
        yield f"    due after {_closing_text(w, o)}"
    if k.late_before_us is not None:
        yield f"  rows before {format_iso(k.late_before_us)} are late"
    if w.read_by and k.open:
        yield f"  its result goes to stage {' and '.join(map(quote_stage, w.read_by))}"


def _window_lines(w: StageReport, head: str) -> Iterator[str]:
    noun = "session" if w.kind == "session" else "window"
    keys_text = f" of {plural(w.open_keys, 'key')}" if w.open_keys is not None else ""
    if not w.next:
        yield f"{head}no {noun} is open"
        return
    yield f"{head}{plural(w.open_windows, f'open {noun}')}{keys_text}; the next to close:"
    keys = list(w.next[0].key or {})
    count_header = ["keys"] if w.next[0].groups is not None else ["rows"] if w.next[0].rows is not None else []
    yield from align_rows(
        [
            ["", *keys, "start", *count_header, "closes at watermark", "closes after"],
            *(
                [
                    "",
                    *(_key_value_text(v) for v in (o.key or {}).values()),
                    format_iso(o.start_us),
                    *([f"{o.rows if o.groups is None else o.groups:,}"] if count_header else []),
                    format_iso(o.closes_us),
                    _closing_text(w, o),
                ]
                for o in w.next
            ),
        ]
    )


def _key_lines(w: StageReport, k: KeyReport, head: str) -> Iterator[str]:
    noun = "session" if w.kind == "session" else "window"
    name = ", ".join(f"{n}={_key_value_text(v)}" for n, v in k.key.items())
    if w.kept is not None:
        yield from _key_timer_lines(w, k, head, name)
        return
    yield f"{head}key {name}: " + (plural(len(k.open), f"open {noun}") if k.open else f"no {noun} is open")
    for o in k.open:
        last = "" if o.last_us is None else f", last event {format_iso(o.last_us)}"
        rows = "" if o.rows is None else f", {plural(o.rows, 'row')}"
        yield f"  {noun} from {format_iso(o.start_us)}{last}{rows}"
        behind = (
            "there is no watermark yet"
            if w.watermark_us is None
            else f"the watermark is {format_age(o.closes_us - w.watermark_us)} behind that"
        )
        yield f"    closes at watermark {format_iso(o.closes_us)}; {behind}"
        if o.reason == "cap":
            yield "    the session is cut there, at max_session_duration; an earlier row can still move the cut"
        elif noun == "session":
            yield "    until then, a row within the gap extends the session"
        yield f"    closes after {_closing_text(w, o)}"
    if k.floor_us is not None:
        yield f"  floor {format_iso(k.floor_us)}: the last closed session ended there, and rows up to this time are late"
    if k.late_before_us is not None:
        joins = " unless they join an open session" if noun == "session" else ""
        yield f"  rows before {format_iso(k.late_before_us)} are late{joins}"
    if w.read_by and k.open:
        yield f"  its result goes to stage {' and '.join(map(quote_stage, w.read_by))}"


def _history_lines(k: KeyReport, file: str | None) -> Iterator[str]:
    """Yield lines that list the late rows and the latest published results of one key."""
    if k.history is None:
        return
    if k.history.late:
        yield f"  late rows, the newest {len(k.history.late)}:" if k.history.more_late else "  late rows:"
        for late in k.history.late:
            by = (
                ""
                if late.late_us is None
                else f", {format_age(late.late_us)} behind the watermark {_time(late.watermark_us)}"
            )
            missed = f", missed {', '.join(late.windows)}" if late.windows else ""
            applied = ", applied by dlq replay" if late.applied else ""
            yield visible(
                f"    {_time(late.event_us)}{by}{missed}{applied}; {late.place or late.source}, epoch {late.epoch}"
            )
        if file is None:
            yield "    for their content, see key.history.late of this report"
        else:
            names = shlex.quote(",".join(f"{n}={_key_value_text(v)}" for n, v in k.key.items()))
            yield visible(f"    for their content, run: slackwater dlq show {file} --reason late --key {names}")
    elif k.history.late_problem is not None:
        yield f"  late rows are unknown: {k.history.late_problem}"
    else:
        yield "  late rows: none"
    for results in k.history.results:
        yield from _result_lines(results, len(k.history.results) > 1)


def _result_lines(results: PublishedResults, several: bool) -> Iterator[str]:
    target_text = f' in target "{results.target}"' if several else ""
    if results.problem is not None:
        yield f"  published results{target_text} cannot be shown: {results.problem}"
    elif not results.rows:
        yield f"  published results{target_text}: none"
    else:
        yield (
            f"  published results{target_text}, the last {len(results.rows)}:"
            if results.rows[1:]
            else f"  published result{target_text}:"
        )
        names = list(results.rows[0])
        yield from (
            f"    {line}" for line in align_rows([names, *([format_cell(r[n]) for n in names] for r in results.rows)])
        )


def _closing_text(w: StageReport, o: OpenWindow) -> str:
    """Describe which events would close a window. Sources that need the same event time are listed together."""
    parts = list[str]()
    for choice in dict.fromkeys(n.choice for n in o.needs):
        events = [n for n in o.needs if n.choice == choice]
        either = " and " if choice is None else " or "
        times = sorted({n.event_us for n in events})
        alternatives = either.join(
            f"{either.join(_event_source_text(n) for n in events if n.event_us == t)} at or after {format_iso(t)}"
            for t in times
        )
        parts.append(f"({alternatives})" if len(events) > 1 and len(o.needs) > len(events) else alternatives)
    condition = f"an event is seen on {' and '.join(parts)}"
    if o.silence_us is None:
        return condition
    return f"{condition}, or after {format_age(max(o.silence_us, 0))} more without any"


def _event_source_text(n: RequiredEvent) -> str:
    names = ", ".join(n.partitions[:PARTITIONS])
    more = f" and {len(n.partitions) - PARTITIONS} more" if len(n.partitions) > PARTITIONS else ""
    partition_text = f" (each of {names}{more})" if len(n.partitions) > 1 else f" (partition {names})" if names else ""
    return f'"{n.source}"{partition_text}'


def _time(us: int | None) -> str:
    return "none yet" if us is None else format_iso(us)


def _key_value_text(value: Any) -> str:
    return "NULL" if value is None else str(value)
