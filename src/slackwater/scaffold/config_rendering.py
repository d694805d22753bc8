"""Renders a commented TOML config from a sample and the user's choices."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.core.column_names import quote_identifier_if_needed
from slackwater.core.humanize import format_estimate, format_ms, plural
from slackwater.scaffold.config_proposals import OutOfOrderness, TimeColumnCandidate, propose_time_columns
from slackwater.scaffold.sample import Sample, abbreviate_value

KINDS = ("session", "tumbling", "hopping", "join")
_SHAPES = {
    "session": 'gap = "30m"                     # a silence longer than this ends a session; window_end is its last row plus this\n'
    'max_session_duration = "12h"    # no session grows beyond this\n',
    "tumbling": 'duration = "{length}"                # every window is this long, side by side\n'
    "max_groups_per_window = 1000000    # at most this many keys in a window\n",
    "hopping": 'duration = "{length}"                # every window is this long …\n'
    'hop = "{hop}"                      # … and a new one begins this often\n'
    "max_groups_per_window = 1000000    # at most this many keys in a window\n",
}


@dataclass(frozen=True)
class DraftSide:
    """One of the sources in the config: its query, format and columns, and its time and key columns."""

    name: str
    query: str
    format: str
    columns: Mapping[str, str]
    options: Mapping[str, str]
    time: str | None  # None: the timestamp of the record
    unit: str | None
    keys: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigDraft:
    """The choices from which the config is rendered."""

    name: str
    kind: str
    kafka: bool
    brokers: str
    lateness_ms: int
    lateness_note: str
    length_ms: int = 300_000
    measure: str | None = None
    other_keys: tuple[str, ...] = ()
    drops_bad: str = ""  # why bad rows are dropped, or ""
    keeps_late: str = ""  # why late rows become dead letters, or ""


def _toml_string(text: str) -> str:
    """Format a string as a TOML string, in which `${` is escaped."""
    return json.dumps(text.replace("${", "$${"), ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(map(_toml_string, names))}]"


def format_config(draft: ConfigDraft, sides: Sequence[DraftSide]) -> str:
    """Return the content of the config file."""
    parts = [
        "# Every key: docs/configuration.md. In an editor: slackwater schema > slackwater.schema.json, and a first line\n"
        '# "#:schema ./slackwater.schema.json" completes keys and marks mistakes.\n'
        f"name = {_toml_string(draft.name)}                # names the pipeline and its state\n",
        *_connections(draft),
        *(_source(side, draft.kafka) for side in sides),
        _transform(draft),
        _join(draft, sides) if draft.kind == "join" else _window(draft, sides[0]),
        f'[target]\nconnection = "files"\npath = {_toml_string("out/" + draft.name)}           # one file per epoch, each row once\n'
        'format = "parquet"                 # or "json", "csv"\n',
        _letters(draft),
        f"[state_store]                      # open windows, positions and watermarks; a restart continues from here\n"
        f'kind = "files"\npath = {_toml_string("state/" + draft.name)}\n',
    ]
    return "\n".join(parts)


def _connections(draft: ConfigDraft) -> list[str]:
    tables = ['[connections.files]\nkind = "files"\n']
    if draft.kafka:
        tables.append(
            f'[connections.bus]\nkind = "kafka"\nbootstrap_servers = {_toml_string(draft.brokers)}\n'
            '# options = { "security.protocol" = "SASL_SSL", "sasl.mechanism" = "PLAIN" }    # as Kafka spells them\n'
        )
    return tables


def _source(side: DraftSide, kafka: bool) -> str:
    schema = ", ".join(f"{quote_identifier_if_needed(name)} {kind}" for name, kind in side.columns.items())
    lines = ["[[sources]]", f"name = {_toml_string(side.name)}", f'connection = "{"bus" if kafka else "files"}"']
    lines.append(f"query = {_toml_string(side.query)}" + ("    # the topic; several with commas" if kafka else ""))
    lines.append('payload_format = "json"' if kafka else f"format = {_toml_string(side.format)}")
    lines += [f"# {note}" for note in side.notes]
    lines.append(f"schema = {_toml_string(schema)}")
    if side.options:
        lines.append(
            f"options = {{ {', '.join(f'{key} = {_toml_string(value)}' for key, value in side.options.items())} }}"
        )
    if kafka:
        lines.append('starting_offsets = "earliest"      # where a new pipeline begins')
    return "\n".join(lines) + "\n"


def _transform(draft: ConfigDraft) -> str:
    dead_letter_policy = f'on_error = "dlq"                   # bad rows go to [dead_letter], too: {draft.drops_bad}'
    policy = (
        dead_letter_policy
        if draft.drops_bad and draft.keeps_late
        else (
            f'on_error = "drop"                  # bad rows are counted and logged: {draft.drops_bad}'
            if draft.drops_bad
            else ('on_error = "fail"                  # a bad row stops the run; "drop" counts and logs them')
        )
    )
    sql = (
        ""
        if draft.kind == "join"
        else '# sql = "SELECT * FROM source WHERE …"   # row-wise SQL before the window; keep _event_ts\n'
    )
    return f"[transform]\n{policy}\n{sql}"


def _letters(draft: ConfigDraft) -> str:
    """Return the [dead_letter] table, commented out if no row would become a dead letter."""
    lines = [
        "[dead_letter]                      # late and bad rows with their content: slackwater dlq show",
        'connection = "files"',
        f"path = {_toml_string('letters/' + draft.name)}",
    ]
    if not draft.keeps_late:
        lines = ['# with late_data = "dlq" or on_error = "dlq":', *(f"# {line}" for line in lines)]
    return "\n".join(lines) + "\n"


def _late_data(draft: ConfigDraft) -> str:
    if draft.keeps_late:
        return f'late_data = "dlq"                  # {draft.keeps_late}, to [dead_letter]; "drop" only counts them'
    return 'late_data = "drop"                 # counted; "dlq" keeps them in [dead_letter], "reopen" corrects windows'


def _times(draft: ConfigDraft, side: DraftSide) -> str:
    lines = []
    if side.time is not None:
        lines.append(f"event_time_column = {_toml_string(side.time)}")
    else:
        lines.append(
            '# event_time_column = "…"           # a column of the payload; without it the record\'s timestamp counts'
        )
    if side.unit is not None:
        lines.append(f'event_time_unit = "{side.unit}"               # of integers')
    lines.append(f"lateness = {_toml_string(format_ms(draft.lateness_ms))}                # {draft.lateness_note}")
    return "\n".join(lines) + "\n"


def _window(draft: ConfigDraft, side: DraftSide) -> str:
    hop = max(1000, draft.length_ms // 4)
    shape = _SHAPES[draft.kind].format(length=format_ms(draft.length_ms), hop=format_ms(hop))
    others = (
        f"    # or: {', '.join(json.dumps(k, ensure_ascii=False) for k in draft.other_keys)}"
        if draft.other_keys
        else ""
    )
    text = (
        f'[transform.window]\nkind = "{draft.kind}"\n{shape}{_times(draft, side)}group_by = {_list(side.keys)}{others}\n'
        f"{_late_data(draft)}\n\n"
        f"{_columns(draft.kind, side.keys)}\n"
        '[[transform.window.aggregations]]\nagg = "count"\nas = "events"\n'
    )
    if draft.measure is not None:
        text += f'\n[[transform.window.aggregations]]\nagg = "sum"\ncolumn = {_toml_string(draft.measure)}\nas = {_toml_string(draft.measure + "_sum")}\n'
    return text


def _columns(kind: str, keys: Sequence[str]) -> str:
    """Return a comment that lists the columns of a result other than its aggregations."""
    times = ("window_start", "window_end")
    if kind != "session":
        return f"# columns of a result: {', '.join((*times, *keys))}, and those of the aggregations"
    session_note = "# session_id: a stable hash of key and start, different for each session and equal in every run"
    return f"# columns of a result: {', '.join((*keys, *times, 'session_id'))}, and those of the aggregations\n{session_note}"


def _join(draft: ConfigDraft, sides: Sequence[DraftSide]) -> str:
    left_side, right_side = sides
    return (
        '[transform.join]\nkind = "inner"                     # or "left", "right", "full": rows without a partner are emitted, too\n'
        f"left_source = {_toml_string(left_side.name)}\nright_source = {_toml_string(right_side.name)}\n"
        f"left_keys = {_list(left_side.keys)}\nright_keys = {_list(right_side.keys)}\n"
        'time_window = "1h"              # how far apart matching rows may be, either way\n'
        f"{_times(draft, left_side)}" + (f"{_late_data(draft)}\n" if draft.keeps_late else "")
    )


def draft_side(
    sample: Sample,
    config_directory: Path,
    name: str,
    time: TimeColumnCandidate | None,
    keys: Sequence[str],
    topic: str | None,
) -> DraftSide:
    """Return a source for the files of a sample, or for a topic with similar records.

    Args:
        sample: The sample from which the schema was inferred.
        config_directory: The directory of the config; the query is relative to it.
        name: The name of the source.
        time: The event-time column; None to use the timestamp of the record.
        keys: The key columns.
        topic: The topic; None to read the files of the sample.
    """
    notes = [
        f"from {plural(len(sample.rows), 'row')} of {json.dumps(sample.path.name, ensure_ascii=False)}; correct it where you know better"
    ]
    notes += [f"not read: {' '.join(line.split())}" for line in sample.skipped]
    query = topic or os.path.relpath(sample.query, config_directory)
    return DraftSide(
        name=name,
        query=query,
        format=sample.format,
        columns=sample.columns,
        options={} if topic else sample.options,
        time=None if time is None else time.name,
        unit=None if time is None else time.unit,
        keys=tuple(keys),
        notes=tuple(notes),
    )


def lateness_note(disorder: OutOfOrderness | None) -> str:
    """Return a comment that explains how the lateness was chosen. `disorder`: None if the sample was not measured."""
    if disorder is None:
        return "rows may be this much out of order"
    if not disorder.most_us:
        return f"the sample is in order ({plural(disorder.rows, 'row')}); live data rarely is"
    most = format_estimate(disorder.most_us)
    if disorder.in_time == 1.0:
        return f"rows are out of order by up to {most} in the sample"
    share = math.floor(disorder.in_time * 10_000 + 1e-6) / 100  # never more than the actual share
    note = f"keeps {share:g}% of the sample, where rows are out of order by up to {most}"
    return f"{note}: a clock in it may be wrong, see max_jump" if disorder.in_time < 0.5 else note


def describe_disorder(disorder: OutOfOrderness) -> list[str]:
    """Return lines that describe how far the rows of a sample lag behind the newest row before them."""
    if not disorder.most_us:
        return [lateness_note(disorder)]
    quantiles = (
        ("p50", disorder.p50_us),
        ("p99", disorder.p99_us),
        ("p99.9", disorder.p999_us),
        ("max", disorder.most_us),
    )
    lines = [f"behind the newest earlier row: {', '.join(f'{name} {format_estimate(us)}' for name, us in quantiles)}"]
    lateness = format_ms(disorder.lateness_ms)
    if disorder.in_time == 1.0:
        return [*lines, f"lateness {lateness} keeps all of them"]
    return [
        *lines,
        f"lateness {lateness} {lateness_note(disorder)}; {describe_late_rows(disorder)}, kept as dead letters",
    ]


def describe_late_rows(disorder: OutOfOrderness | None) -> str:
    """Describe how many rows of the sample would be late with the proposed lateness; empty if there are none."""
    if disorder is None or not disorder.late:
        return ""
    return f"{plural(disorder.late, 'row')} of the sample would be late"


def describe_sample(sample: Sample, time: TimeColumnCandidate | None, disorder: OutOfOrderness | None) -> list[str]:
    """Return notes about the sample, one per line."""
    lines = [
        f"{sample.path}: {plural(len(sample.rows), 'row')} of {sample.format}, {plural(len(sample.columns), 'column')}"
    ]
    if sample.bad:
        first_bad = f"; {sample.first_bad}" if sample.first_bad else ""
        lines.append(f"  {plural(sample.bad, 'line')} cannot be decoded: bad rows{first_bad}")
    if time is not None:
        unit = f" in {time.unit} since 1970" if time.unit else ""
        lines.append(
            f"  event time: {time.name}{unit}"
            + (
                f"; {plural(time.missing, 'row')} without one: bad rows{_first_missing(sample, time)}"
                if time.missing
                else ""
            )
        )
        if not time.zoned:
            lines.append("  its values have no zone and are read as UTC; event_time_zone sets another zone")
        others = [t.name for t in propose_time_columns(sample) if t.name != time.name]
        if others:
            lines.append(f"  other times: {', '.join(others[:4])} (--time)")
    if disorder is not None:
        lines += [f"  {line}" for line in describe_disorder(disorder)]
    return lines


def _first_missing(sample: Sample, time: TimeColumnCandidate) -> str:
    """Describe the first row without a usable time: its value and its location."""
    if time.first_bad is None:
        return ""
    row, location = sample.rows[time.first_bad], sample.row_location(time.first_bad)
    return f"; {location} has {abbreviate_value(row[time.name]) if row.get(time.name) is not None else 'none'}"
