"""A commented config as text, from what was found and what was chosen."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.core.humanize import plural
from slackwater.core.time import duration_text
from slackwater.scaffold.sample import Sample
from slackwater.scaffold.times import OutOfOrderness, TimeColumn
from slackwater.scaffold.types import quote_name

KINDS = ("session", "tumbling", "hopping", "join")
_SHAPES = {
    "session": 'gap = "30m"                     # a silence longer than this ends a session; window_end is its last row plus this\n'
    'max_session_duration = "12h"    # no session grows beyond this\n',
    "tumbling": 'duration = "{length}"                # every window is so long, side by side\n'
    "max_groups_per_window = 1000000    # a bound on the keys of a window\n",
    "hopping": 'duration = "{length}"                # every window is so long …\n'
    'hop = "{hop}"                      # … and a new one begins so often\n'
    "max_groups_per_window = 1000000    # a bound on the keys of a window\n",
}


@dataclass(frozen=True)
class DraftSide:
    """A source of the config: where its rows are, what they look like, what its time and keys are."""

    name: str
    query: str
    format: str
    columns: Mapping[str, str]
    options: Mapping[str, str]
    time: str | None  # None: the record's own
    unit: str | None
    keys: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigDraft:
    """What the config is to do."""

    name: str
    kind: str
    kafka: bool
    brokers: str
    lateness_ms: int
    lateness_note: str
    length_ms: int = 300_000
    measure: str | None = None
    other_keys: tuple[str, ...] = ()
    drops_bad: str = ""  # why bad rows are dropped, else ""
    keeps_late: str = ""  # why late rows become dead letters, else ""


def q(text: str) -> str:
    """A TOML string."""
    return json.dumps(text.replace("${", "$${"), ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(map(q, names))}]"


def render_config(wanted: ConfigDraft, sides: Sequence[DraftSide]) -> str:
    """The whole file."""
    parts = [
        "# Every key: docs/configuration.md. In an editor: slackwater schema > slackwater.schema.json, and a first line\n"
        '# "#:schema ./slackwater.schema.json" completes keys and marks mistakes.\n'
        f"name = {q(wanted.name)}                # names the pipeline and its state\n",
        *_connections(wanted),
        *(_source(side, wanted.kafka) for side in sides),
        _transform(wanted),
        _join(wanted, sides) if wanted.kind == "join" else _window(wanted, sides[0]),
        f'[target]\nconnection = "files"\npath = {q("out/" + wanted.name)}           # one file per epoch, each row once\n'
        'format = "parquet"                 # or "json", "csv"\n',
        _letters(wanted),
        f"[state_store]                      # open windows, positions and watermarks; a restart goes on from here\n"
        f'kind = "files"\npath = {q("state/" + wanted.name)}\n',
    ]
    return "\n".join(parts)


def _connections(wanted: ConfigDraft) -> list[str]:
    found = ['[connections.files]\nkind = "files"\n']
    if wanted.kafka:
        found.append(
            f'[connections.bus]\nkind = "kafka"\nbootstrap_servers = {q(wanted.brokers)}\n'
            '# options = { "security.protocol" = "SASL_SSL", "sasl.mechanism" = "PLAIN" }    # as Kafka spells them\n'
        )
    return found


def _source(side: DraftSide, kafka: bool) -> str:
    schema = ", ".join(f"{quote_name(name)} {kind}" for name, kind in side.columns.items())
    lines = ["[[sources]]", f"name = {q(side.name)}", f'connection = "{"bus" if kafka else "files"}"']
    lines.append(f"query = {q(side.query)}" + ("    # the topic; several with commas" if kafka else ""))
    lines.append('payload_format = "json"' if kafka else f"format = {q(side.format)}")
    lines += [f"# {note}" for note in side.notes]
    lines.append(f"schema = {q(schema)}")
    if side.options:
        lines.append(f"options = {{ {', '.join(f'{key} = {q(value)}' for key, value in side.options.items())} }}")
    if kafka:
        lines.append('starting_offsets = "earliest"      # where a new pipeline begins')
    return "\n".join(lines) + "\n"


def _transform(wanted: ConfigDraft) -> str:
    kept = f'on_error = "dlq"                   # bad rows go to [dead_letter], too: {wanted.drops_bad}'
    policy = (
        kept
        if wanted.drops_bad and wanted.keeps_late
        else (
            f'on_error = "drop"                  # bad rows are counted and logged: {wanted.drops_bad}'
            if wanted.drops_bad
            else ('on_error = "fail"                  # a bad row stops the run; "drop" counts and logs them')
        )
    )
    sql = (
        ""
        if wanted.kind == "join"
        else '# sql = "SELECT * FROM source WHERE …"   # row-wise SQL before the window; keep _event_ts\n'
    )
    return f"[transform]\n{policy}\n{sql}"


def _letters(wanted: ConfigDraft) -> str:
    """[dead_letter], as a comment where nothing would go there."""
    lines = [
        "[dead_letter]                      # late and bad rows with their content: slackwater dlq show",
        'connection = "files"',
        f"path = {q('letters/' + wanted.name)}",
    ]
    if not wanted.keeps_late:
        lines = ['# with late_data = "dlq" or on_error = "dlq":', *(f"# {line}" for line in lines)]
    return "\n".join(lines) + "\n"


def _late_data(wanted: ConfigDraft) -> str:
    if wanted.keeps_late:
        return f'late_data = "dlq"                  # {wanted.keeps_late}, to [dead_letter]; "drop" only counts them'
    return 'late_data = "drop"                 # counted; "dlq" keeps them in [dead_letter], "reopen" corrects windows'


def _times(wanted: ConfigDraft, side: DraftSide) -> str:
    lines = []
    if side.time is not None:
        lines.append(f"event_time_column = {q(side.time)}")
    else:
        lines.append(
            '# event_time_column = "…"           # a column of the payload; without it the record\'s timestamp counts'
        )
    if side.unit is not None:
        lines.append(f'event_time_unit = "{side.unit}"               # of integers')
    lines.append(f"lateness = {q(duration_text(wanted.lateness_ms))}                # {wanted.lateness_note}")
    return "\n".join(lines) + "\n"


def _window(wanted: ConfigDraft, side: DraftSide) -> str:
    hop = max(1000, wanted.length_ms // 4)
    shape = _SHAPES[wanted.kind].format(length=duration_text(wanted.length_ms), hop=duration_text(hop))
    others = (
        f"    # or: {', '.join(json.dumps(k, ensure_ascii=False) for k in wanted.other_keys)}"
        if wanted.other_keys
        else ""
    )
    text = (
        f'[transform.window]\nkind = "{wanted.kind}"\n{shape}{_times(wanted, side)}group_by = {_list(side.keys)}{others}\n'
        f"{_late_data(wanted)}\n\n"
        f"{_columns(wanted.kind, side.keys)}\n"
        '[[transform.window.aggregations]]\nagg = "count"\nas = "events"\n'
    )
    if wanted.measure is not None:
        text += f'\n[[transform.window.aggregations]]\nagg = "sum"\ncolumn = {q(wanted.measure)}\nas = {q(wanted.measure + "_sum")}\n'
    return text


def _columns(kind: str, keys: Sequence[str]) -> str:
    """What a result has beside its aggregations, as a comment."""
    times = ("window_start", "window_end")
    if kind != "session":
        return f"# columns of a result: {', '.join((*times, *keys))}, and those that aggregations name"
    told = "# session_id: a number of its own for each session, made of key and start: the same in every run"
    return (
        f"# columns of a result: {', '.join((*keys, *times, 'session_id'))}, and those that aggregations name\n{told}"
    )


def _join(wanted: ConfigDraft, sides: Sequence[DraftSide]) -> str:
    left, right = sides
    return (
        '[transform.join]\nkind = "inner"                     # or "left", "right", "full": rows without a partner come out, too\n'
        f"left_source = {q(left.name)}\nright_source = {q(right.name)}\n"
        f"left_keys = {_list(left.keys)}\nright_keys = {_list(right.keys)}\n"
        'time_window = "1h"              # how far apart partners may be, either way\n'
        f"{_times(wanted, left)}" + (f"{_late_data(wanted)}\n" if wanted.keeps_late else "")
    )


def side_of(
    sample: Sample, home: Path, name: str, time: TimeColumn | None, keys: Sequence[str], topic: str | None
) -> DraftSide:
    """A source over the files of a sample, as seen from the folder of the config; or over a topic whose records look like it."""
    notes = [
        f"from {plural(len(sample.rows), 'row')} of {json.dumps(sample.path.name, ensure_ascii=False)}; correct what you know better"
    ]
    notes += [f"not read: {' '.join(line.split())}" for line in sample.skipped]
    query = topic or os.path.relpath(sample.query, home)
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


def lateness_note(seen: OutOfOrderness | None) -> str:
    """What the lateness was taken from."""
    if seen is None:
        return "rows may be this much out of order"
    if not seen.most_us:
        return f"rows are in order in the sample ({plural(seen.rows, 'row')}); of live sources they rarely are"
    most = format_span(seen.most_us)
    if seen.in_time == 1.0:
        return f"rows are out of order by up to {most} in the sample"
    share = math.floor(seen.in_time * 10_000 + 1e-6) / 100  # never more than it is
    kept = f"keeps {share:g} % of the sample, where rows are out of order by up to {most}"
    return f"{kept}: a clock in it may be wrong, see max_jump" if seen.in_time < 0.5 else kept


def disorder_lines(seen: OutOfOrderness) -> list[str]:
    """How far the rows of a sample lie behind the newest one before them, for people."""
    if not seen.most_us:
        return [lateness_note(seen)]
    parts = (("p50", seen.p50_us), ("p99", seen.p99_us), ("p99.9", seen.p999_us), ("max", seen.most_us))
    lines = [f"behind the newest row before: {', '.join(f'{name} {format_span(us)}' for name, us in parts)}"]
    lateness = duration_text(seen.lateness_ms)
    if seen.in_time == 1.0:
        return [*lines, f"lateness {lateness} keeps all of them"]
    return [*lines, f"lateness {lateness} {lateness_note(seen)}; {late_rows(seen)}, kept as dead letters"]


def late_rows(seen: OutOfOrderness | None) -> str:
    """The rows that the proposed lateness does not keep; an empty text for none."""
    if seen is None or not seen.late:
        return ""
    return f"{plural(seen.late, 'row')} of the sample would be late"


def format_span(us: int) -> str:
    """A distance in time: its largest unit that leaves a number of two digits."""
    seconds = us / 1e6
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.3g} s"
