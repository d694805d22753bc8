"""Read results without Spark or a lock, from the target of a pipeline or from any location, and compare them.

`result_reader` first reads the published results of a pipeline, and then only new results:

    target     first read                                  later reads
    files      the files that this pipeline wrote          files that did not exist before
    Delta      the latest version of the table             rows of added files that no removed file had
    Iceberg    the current snapshot of the table           rows of added files that no removed file had
    Postgres   the table                                   rows whose transaction the last read did not see
    Kafka      the latest records, one per key             new records

`read_rows_at_location` reads everything at a location as one frame:

    out/sessions, x.parquet, x.jsonl, x.csv      files, or a directory of them
    lake/sessions                                a Delta table
    postgresql://host/db#schema.table            a table
    sessions.toml, sessions.toml#hours           the target of a pipeline, by name if there are several
    state:sessions.toml, state:DIR, state:URL    the open and retained windows of a state

Two outputs are compared by identity, to find which rows are equal, missing or different, and in which columns:

    A  user  window_start  n        B  user  window_start  n
       a     09:00         3           a     09:00         3     equal
       a     09:30         1           a     09:30         2     different: n
       b     09:00         7                                     only in A
                                       NULL  09:00         1     only in B

NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0. Columns of different types are compared in the more precise type
(CSV files contain only text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.connectors.connector import connector_for
from slackwater.connectors.files.connector import read_path
from slackwater.connectors.files.target import json_columns
from slackwater.connectors.target import LabeledRows, ResultReader
from slackwater.core.row_format import is_nested
from slackwater.errors import StartError, Topic
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.query.state_locator import locate_store
from slackwater.query.state_view import StateView

TIMES = ("window_start", "window_end")
_URL = re.compile(r"postgres(ql)?://")


def result_reader(pipeline: Pipeline) -> ResultReader:
    """Return a reader for the first or only target of a pipeline.

    Raises StartError if the target stores nothing that can be read.
    """
    connection = resolve_connection(pipeline.target.connection, pipeline.connections)
    assert connection is not None, "the config was checked"
    return connector_for(connection).result_reader(pipeline.target, pipeline, pipeline.writers)


def read_all_results(pipeline: Pipeline, target: str | None = None) -> pl.DataFrame:
    """Return all rows of a target in the order of their windows. Before the first publish, the frame has no columns.

    `target`: the name of the target; None for the only one.
    Raises StartError if the target stores nothing that can be read.
    """
    window = pipeline.target_stage.transform.window
    with closing(result_reader(pipeline.one_target(target))) as reader:
        rows = reader.read()
    if rows is None:
        return pl.DataFrame()
    return sort_by_start(rows, None if window is None else window.window_start_column)


def sort_by_start(frame: pl.DataFrame, start: str | None) -> pl.DataFrame:
    """Parse times stored as text, and sort rows by the window start column `start`, if it exists."""
    texts = [c for c in {start, *TIMES} if c in frame.columns and frame.schema[c] == pl.String]
    frame = frame.with_columns(
        pl.col(c).str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC", strict=False) for c in texts
    )
    by = [c for c in (start, *frame.columns) if c is not None and c in frame.columns]
    sortable = [c for c in dict.fromkeys(by) if not frame.schema[c].is_nested()]
    if start is None or start not in frame.columns:
        return frame
    return frame.sort(sortable, nulls_last=False, maintain_order=True)


def read_rows_at_location(where: str) -> LabeledRows:
    """Read the rows at a location, in a form that the module docstring lists.

    Raises StartError, StateError or ConfigError if the rows cannot be read.
    """
    if where.startswith("state:"):
        return _read_state(where.removeprefix("state:"))
    if _URL.match(where):
        from slackwater.connectors.postgres.connector import PostgresResultReader
        from slackwater.state.postgres import client

        url, _, table = where.partition("#")
        if not table:
            raise StartError(
                f"{client.server_address(url)}: the URL does not name a table; append it, as in postgresql://…/database#schema.table",
                Topic.OUTPUT_UNREADABLE,
            )
        return PostgresResultReader(url, table).read_all()
    path = Path(where)
    if path.suffix == ".toml" and not path.is_dir():
        return _read_pipeline_target(toml.load(path).one_target())
    file, _, name = where.rpartition("#")
    if file.endswith(".toml") and not path.exists():
        return _read_pipeline_target(toml.load(Path(file)).one_target(name))
    return _read_path(where)


def _read_state(where: str) -> LabeledRows:
    place, _, name = where.partition("#")
    store = locate_store(place, name or None)
    with closing(store), StateView(store) as view:
        rows, commit = view.scan(), view.manifest()
    identity = restore_window(commit, -1).identity
    label = f"state of {commit.pipeline} in epoch {commit.epoch}"
    return LabeledRows(label, rows.select(c for c in rows.columns if not c.startswith("_")), identity)


def _read_pipeline_target(pipeline: Pipeline) -> LabeledRows:
    target, window = pipeline.target, pipeline.target_stage.transform.window
    connection = resolve_connection(target.connection, pipeline.connections)
    identity = None if window is None else (*window.group_by, window.window_start_column)
    assert connection is not None, "the config was checked"
    with closing(result_reader(pipeline)) as reader:
        output = reader.read_all()
    if output is None:
        raise StartError(
            f"{pipeline.name}: the target ({connection.kind}) cannot be read back; pass files, a table or state:FILE",
            Topic.OUTPUT_UNREADABLE,
        )
    label = f"{pipeline.name}, target {target.name}" if pipeline.targets else pipeline.name
    return LabeledRows(f"{label}: {output.label}", output.rows, identity)


def _read_path(where: str) -> LabeledRows:
    if "://" in where or (Path(where) / "_delta_log").is_dir():
        from slackwater.connectors.delta.connector import DeltaResultReader

        return DeltaResultReader(where, {}).read_all()
    return read_path(where)


_UTC = pl.Datetime("us", "UTC")
_NTH = "__nth"


@dataclass(frozen=True)
class ResultComparison:
    """Result of a comparison. Each pair contains a value for A and a value for B.

    Args:
        by: The columns that identify a row.
        rows: The number of rows.
        equal: The number of rows that are equal.
        only: The number of rows that the other output does not have.
        different: The number of rows with equal identity and different values.
        columns: The number of rows that differ, by column.
        missing: The columns that the other output does not have.
        repeated: The number of rows that share their identity with an earlier row.
        only_examples: Examples of the rows that the other output does not have, with all columns.
        different_examples: Examples of different rows: the identity, then `<name>` (A), `<name>__b` (B) and
            `<name>__differs` per column.
    """

    by: tuple[str, ...]
    rows: tuple[int, int]
    equal: int
    only: tuple[int, int]
    different: int
    columns: Mapping[str, int]
    missing: tuple[tuple[str, ...], tuple[str, ...]]
    repeated: tuple[int, int]
    only_examples: tuple[pl.DataFrame, pl.DataFrame]
    different_examples: pl.DataFrame

    @property
    def same(self) -> bool:
        """Return whether the outputs have equal rows and equal columns."""
        return not (any(self.only) or self.different or any(self.missing))


def compare_outputs(
    a: LabeledRows,
    b: LabeledRows,
    by: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    tolerance: float = 0.0,
    examples: int = 10,
) -> ResultComparison:
    """Compare two outputs.

    If several rows have the same identity, they are paired in the order of their values. If rows have a `_revision`,
    only the newest revision counts.

    Args:
        a: One output.
        b: The other output.
        by: The columns that identify a row. By default, the identity that the outputs declare.
        ignore: Columns that are not compared.
        tolerance: Numbers x and y are equal if abs(x - y) <= tolerance * max(1, abs(x), abs(y)).
        examples: The maximum number of example rows for each kind of difference.

    Raises StartError if a column does not exist, or if the identity is unknown.
    """
    by = _choose_identity(a, b, by)
    for side in (a, b):
        for column in by:
            if column not in side.rows.columns:
                raise StartError(
                    f'{side.label}: there is no column "{column}"; available: {", ".join(side.rows.columns)}',
                    Topic.OUTPUT_UNREADABLE,
                )
    rows_a, rows_b = (_latest_revisions(side.rows, by) for side in (a, b))
    columns = [c for c in rows_a.columns if c in rows_b.columns and c not in ignore]
    missing = tuple(
        tuple(c for c in one.columns if c not in other.columns and c not in ignore)
        for one, other in ((rows_a, rows_b), (rows_b, rows_a))
    )
    pairs = [_align_types(_to_comparable(rows_a[c]), _to_comparable(rows_b[c])) for c in columns]
    rows_a, rows_b = pl.DataFrame([p[0] for p in pairs]), pl.DataFrame([p[1] for p in pairs])
    repeated = tuple(side.height - side.select(by).n_unique() if side.height else 0 for side in (rows_a, rows_b))
    rows_a, rows_b = (_number_repeats(side, by, any(repeated)) for side in (rows_a, rows_b))
    on = [*by, _NTH]
    values = [c for c in columns if c not in by]
    only = [one.join(other, on=on, how="anti", nulls_equal=True) for one, other in ((rows_a, rows_b), (rows_b, rows_a))]
    both = rows_a.join(rows_b, on=on, how="inner", nulls_equal=True, suffix="__b").sort(on)
    unequal = both.select(~_values_equal(c, both.schema[c], tolerance).alias(c) for c in values)
    differs = unequal.select(pl.any_horizontal(values)).to_series() if values else pl.Series([False] * both.height)
    changed, flags = both.filter(differs), unequal.filter(differs).rename("{}__differs".format)
    return ResultComparison(
        tuple(by),
        (rows_a.height, rows_b.height),
        both.height - changed.height,
        (only[0].height, only[1].height),
        changed.height,
        {c: int(unequal[c].sum()) for c in values if unequal[c].any()},
        (missing[0], missing[1]),
        (repeated[0], repeated[1]),
        (_first_rows(only[0], on, examples), _first_rows(only[1], on, examples)),
        pl.concat([changed.drop(_NTH), flags], how="horizontal").head(examples),
    )


def _choose_identity(a: LabeledRows, b: LabeledRows, by: Sequence[str] | None) -> list[str]:
    if by:
        return list(dict.fromkeys(by))
    identities = [side.identity for side in (a, b) if side.identity is not None]
    if not identities:
        raise StartError(
            "files and tables do not define which columns identify a row; name the columns, as in --by user_id,window_start",
            Topic.OUTPUT_UNREADABLE,
        )
    if len(identities) == 2 and set(identities[0]) != set(identities[1]):
        raise StartError(
            f"{a.label} identifies rows by {', '.join(identities[0])}, but {b.label} identifies rows by "
            f"{', '.join(identities[1])}; name the columns with --by",
            Topic.OUTPUT_UNREADABLE,
        )
    return list(identities[0])


def _latest_revisions(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the newest revision of each row, without superseded rows. Without revisions, return the rows unchanged."""
    if not {"_revision", "_emit_reason"} <= set(rows.columns):
        return rows
    standalone = pl.col("_emit_reason") == "standalone"
    newest = rows.filter(~standalone).sort(pl.col("_revision").cast(pl.Int64), maintain_order=True)
    newest = newest.unique(by, keep="last", maintain_order=True).filter(pl.col("_emit_reason") != "supersede")
    return pl.concat([newest, rows.filter(standalone)])


def _number_repeats(rows: pl.DataFrame, by: Sequence[str], repeated: bool) -> pl.DataFrame:
    if not repeated:
        return rows.with_columns(pl.lit(0, pl.Int64).alias(_NTH))
    ordered = rows.sort(rows.columns, nulls_last=False)
    return ordered.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).over(by).alias(_NTH))


def _first_rows(rows: pl.DataFrame, on: Sequence[str], examples: int) -> pl.DataFrame:
    return rows.sort(on).head(examples).drop(_NTH)


# -- values ----------------------------------------------------------------------------------------------------------


def _values_equal(column: str, kind: pl.DataType, tolerance: float) -> pl.Expr:
    one, other = pl.col(column), pl.col(f"{column}__b")
    same = one.eq_missing(other)
    if not tolerance or not kind.is_numeric():
        return same
    one, other = one.cast(pl.Float64), other.cast(pl.Float64)
    size = pl.max_horizontal(pl.lit(1.0), one.abs(), other.abs())
    return same | ((one - other).abs() <= tolerance * size).fill_null(False)


def _to_comparable(values: pl.Series) -> pl.Series:
    """Convert values to a comparable form: nested values to normalized JSON, and -0.0 to 0.0."""
    if is_nested(values.dtype):
        values = json_columns(values.to_frame()).to_series()
        return _normalize_json(values)
    return values + 0.0 if values.dtype.is_float() else values


def _normalize_json(texts: pl.Series) -> pl.Series:
    """Normalize the strings that contain JSON. Other strings are returned unchanged."""

    def normalize(text: str | None) -> str | None:
        try:
            return None if text is None else json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
        except ValueError:
            return text

    return pl.Series(texts.name, [normalize(t) for t in texts.to_list()], dtype=pl.String)


def _align_types(a: pl.Series, b: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Cast two columns to a common type."""
    if a.dtype == b.dtype and not _is_json(a, b):
        return a, b
    one, other = a.dtype, b.dtype
    if one == pl.Null or other == pl.Null:
        return a.cast(other if one == pl.Null else one), b.cast(one if other == pl.Null else other)
    if one == pl.String and other == pl.String:
        return _normalize_json(a), _normalize_json(b)
    if pl.String in (one, other):
        text, typed = (a, b) if one == pl.String else (b, a)
        read, typed = _parse_text(text, typed)
        return (read, typed) if one == pl.String else (typed, read)
    if one.is_temporal() and other.is_temporal():
        return _utc(a), _utc(b)
    if one.is_numeric() and other.is_numeric():
        if one.is_integer() and other.is_integer():
            return a.cast(pl.Int64), b.cast(pl.Int64)
        if one.is_float() or other.is_float():
            return a.cast(pl.Float64), b.cast(pl.Float64)
        scale = max(getattr(one, "scale", 0) or 0, getattr(other, "scale", 0) or 0)
        return a.cast(pl.Decimal(38, scale)), b.cast(pl.Decimal(38, scale))
    return a.cast(pl.String), b.cast(pl.String)


def _is_json(a: pl.Series, b: pl.Series) -> bool:
    """Return whether both columns contain JSON arrays or objects, which formats without nested types store as text."""
    if a.dtype != pl.String or b.dtype != pl.String:
        return False
    begins = [s.drop_nulls().str.starts_with("[") | s.drop_nulls().str.starts_with("{") for s in (a, b)]
    return all(len(s) and bool(s.all()) for s in begins)


def _parse_text(text: pl.Series, typed: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Parse a text column as the type of `typed`. If a value cannot be parsed, return both columns as text."""
    kind = typed.dtype
    if isinstance(kind, pl.Datetime) or kind == pl.Date:
        bare = text.str.replace("T", " ").str.replace(r"(Z|[+]00(:?00)?)$", "")
        padded = pl.when(bare.str.len_chars() == 10).then(bare + " 00:00:00").otherwise(bare)
        parsed = pl.select(padded.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)).to_series()
        parsed, typed = parsed.dt.replace_time_zone("UTC"), _utc(typed)
    elif kind == pl.Boolean:
        flags = {"true": True, "false": False}
        parsed = text.str.to_lowercase().replace_strict(flags, default=None, return_dtype=pl.Boolean)
    elif kind == pl.Binary:
        parsed = text.str.decode("hex", strict=False)
    else:
        parsed = text.cast(kind, strict=False)
    if parsed.null_count() > text.null_count():
        return text, typed.cast(pl.String, strict=False)
    return parsed.alias(text.name), typed


def _utc(values: pl.Series) -> pl.Series:
    kind = values.dtype
    if isinstance(kind, pl.Datetime) and kind.time_zone is not None:
        return values.cast(_UTC)
    return values.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
