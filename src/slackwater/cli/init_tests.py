"""Writes the test that `slackwater init` adds to a new config: a few rows of the sample, and their results."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater.cli.output import program_command
from slackwater.config.error_text import format_key
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.sql import schema_ddl
from slackwater.core.humanize import plural
from slackwater.core.schema import INTEGERS
from slackwater.core.time import parse_timestamp_us
from slackwater.errors import SlackwaterError, StartError, Topic
from slackwater.scaffold.sample import Sample

_ROWS = 12  # maximum number of rows per source
_MOST_TEXT = 200  # maximum number of characters in a string
_FIRST_TIME = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)  # record time of the first row


def write_test(config: Path, pipeline: Pipeline, samples: Sequence[Sample], force: bool) -> list[str]:
    """Write tests/NAME.toml, and return the lines to print for the user.

    Args:
        config: The config under test.
        pipeline: The pipeline of the config.
        samples: A sample of each source, in config order.
        force: Whether to overwrite an existing test.

    Raises StartError if the file cannot be written.
    """
    file = config.parent / "tests" / f"{config.stem}.toml"
    if file.exists() and not force:
        return [f"{file}: already exists and is not changed"]
    input_rows = {
        s.name: _select_rows(pipeline, i, sample)
        for i, (s, sample) in enumerate(zip(pipeline.sources, samples, strict=True))
    }
    if pipeline.transform.join is not None:
        input_rows = _rows_with_partners(pipeline, input_rows, samples)
    try:
        expected: list[Mapping[str, Any]] | None = _compute_expected(pipeline, input_rows)
        why = ""
    except SlackwaterError as error:
        expected, why = None, str(error).splitlines()[0]
    content = _render_test(os.path.relpath(config, file.parent), input_rows, expected)
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise StartError(
            f"{file}: cannot be written ({error.strerror}); check the path and its permissions", Topic.FILE_NOT_WRITABLE
        ) from None
    if expected is None:
        return [
            f"{file}: the expected results are empty ({why}); fill them in with: {program_command()} test {config} --update"
        ]
    rows = sum(map(len, input_rows.values()))
    return [f"{file}: a test with {plural(rows, 'row')} of the sample and {plural(len(expected), 'expected result')}"]


def _select_rows(pipeline: Pipeline, index: int, sample: Sample) -> list[dict[str, Any]]:
    """Return the first rows of a sample in which every required column has a valid value.

    NULL is valid except as the event time. The value of a column that is not required is omitted if a test file cannot
    contain it.
    """
    spec, step = pipeline.sources[index], pipeline.transform.step
    types = schema_ddl.parse_ddl_columns(spec.schema_ or "")
    time = step.event_time_column
    needed = {time} if time in types else {time.partition(".")[0].strip("`")} & set(types)
    if pipeline.transform.window is not None:
        window = pipeline.transform.window
        needed |= {*window.group_by, *(a.column for a in window.aggregations if a.column is not None)}
    rows = []
    for row in sample.rows:
        usable = {c: v for c, t in types.items() if (v := _test_value(row.get(c), t)) is not None}
        if needed <= set(usable) | {c for c in needed if row.get(c) is None and c != time}:
            rows.append(usable)
        if len(rows) == _ROWS * (20 if pipeline.transform.join else 1):
            break
    connection = resolve_connection(spec.connection, pipeline.connections)
    if time == "_event_ts" and connection is not None and connection.kind != "files":
        for n, row in enumerate(rows):
            row[time] = _FIRST_TIME + dt.timedelta(seconds=n)
    return rows


def _test_value(value: Any, kind: str) -> Any:
    """Convert a value of the type `kind` for a test file. Return None for NULL or if the conversion is impossible."""
    base = kind.partition("(")[0].partition("<")[0]
    if base == "string" and isinstance(value, str) and len(value) <= _MOST_TEXT and value.isprintable():
        return value
    if base == "boolean" and isinstance(value, bool):
        return value
    if isinstance(value, bool):
        return None
    if base in INTEGERS and isinstance(value, int) and abs(value) < 2**63:
        return value
    if base in ("double", "float") and isinstance(value, int | float) and value == value and abs(value) < 1e300:
        return value
    if base == "timestamp" and isinstance(value, str) and parse_timestamp_us(value) is not None:
        return value
    if base in ("timestamp", "timestamp_ntz") and isinstance(value, dt.datetime):
        return value
    if base == "struct" and isinstance(value, dict):
        fields = {k: v for k, v in value.items() if isinstance(v, str | int | float | bool) and v == v}
        return fields or None
    return None


def _rows_with_partners(
    pipeline: Pipeline, input_rows: Mapping[str, list[dict[str, Any]]], samples: Sequence[Sample]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each side that have a partner; the first rows of each side if no keys match."""
    join = pipeline.transform.join
    assert join is not None
    sides = [
        (input_rows[name], keys) for name, keys in zip(join.sources, (join.left_keys, join.right_keys), strict=True)
    ]
    side_keys = [{tuple(row.get(k) for k in keys) for row in rows} for rows, keys in sides]
    shared_keys = side_keys[0] & side_keys[1]
    joinable = {}
    for name, (rows, keys) in zip(join.sources, sides, strict=True):
        matching = [row for row in rows if tuple(row.get(k) for k in keys) in shared_keys]
        plain = [{c: v for c, v in row.items() if not isinstance(v, dict)} for row in matching or rows]
        joinable[name] = plain[:_ROWS]
    return joinable


def _compute_expected(
    pipeline: Pipeline, input_rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Mapping[str, Any]]:
    """Compute the expected results for the input rows. Spark starts only if the pipeline has SQL."""
    from slackwater.testing import case_runner
    from slackwater.testing.local_pipeline import LocalPipeline

    with case_runner.quiet_logs():
        try:
            test = LocalPipeline(pipeline)
        except StartError as error:
            if "pass a Spark session as session=" not in str(error):
                raise
            print("computing the expected results with Spark, which takes a few seconds …", flush=True)
            test = LocalPipeline(pipeline, session=case_runner.spark_session([pipeline]))
        with test:
            test.pipe({name: list(rows) for name, rows in input_rows.items()})
            test.flush()
            table = test.result().table
            columns = [c for c in table.columns if c != "session_id"]
            order = [c for c in columns if not table.schema[c].is_nested()]
            rows = table.sort(sorted(order, key=lambda c: c != "window_start")).to_dicts()
    return [case_runner.row_as_toml(row, columns) for row in rows]


def _render_test(
    pipeline: str, input_rows: Mapping[str, Sequence[Mapping[str, Any]]], expected: Sequence[Mapping[str, Any]] | None
) -> str:
    import tomlkit

    from slackwater.testing.case_runner import rows_as_toml

    def rows(some: Sequence[Mapping[str, Any]]) -> str:
        return rows_as_toml(some).as_string()

    parts = [
        "# A test of the pipeline: its input, and the results expected at the end. Run it with: slackwater test",
        f"pipeline = {tomlkit.string(pipeline).as_string()}",
        "",
        '[[steps]]                 # rows that arrive together; more [[steps]]: further rows, quiet = "1h",',
        '                          # crash = "commit.before", restart = { shards = 3 }',
        *(f"rows.{format_key(name)} = {rows(some)}" for name, some in input_rows.items()),
        "",
        "[expect]                  # results in any order, once all windows are closed; slackwater test --update rewrites them",
        *([] if expected is None else [f"rows = {rows(expected)}"]),
        "late = []                 # rows that came too late",
        "bad = []                  # rows that could not be used",
    ]
    return "\n".join(parts) + "\n"


__all__ = ["write_test"]
