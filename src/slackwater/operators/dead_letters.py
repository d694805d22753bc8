"""Dead letters: what is kept of a row that could not be used, with its original bytes where the source has them.

Bad rows are letters at once. Late rows are known only behind the SQL and the shuffle; until then `_origin`, a struct beside
the row's columns, remembers where it came from:

    source ─▶ view `source` with _origin ─▶ SQL (see `spark.origin`) ─▶ late? ─▶ letter
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from slackwater.core.dead_letter import LETTER
from slackwater.joins.logic import JoinLogic
from slackwater.sources.base import CORRUPT
from slackwater.windows import panes
from slackwater.windows.aggregations import quote
from slackwater.windows.logic import Int64s, Logic

LATE, BAD_GAP = "late", "no gap"
OUTSIDE = "event time outside of the years 1 to 9999"
UNPUBLISHED = "not published"  # a result that its target did not take, see `run.set_aside`
ORIGIN = "_origin"
WINDOWS_SHOWN = 100  # starts of missed windows that a letter lists

_FIELDS = {f.name: f for f in LETTER}
ORIGIN_FIELDS = tuple(_FIELDS[n] for n in ("source", "topic", "partition", "offset", "key", "value", "headers", "file"))
ORIGIN_TYPE = f"struct<{','.join(f'{f.name}:{f.type}' for f in ORIGIN_FIELDS)}>"


def letter_columns(columns: Mapping[str, str], pipeline: str, source: str, epoch: int) -> list[str]:
    """Spark SQL over a source's rows with `__bad` and `_event_ts`: the columns of a bad row's letter, in order."""
    found = {
        **_place(columns, source, "nullif(input_file_name(), '')"),
        "reason": "__bad",
        "pipeline": _text(pipeline),
        "epoch": f"{epoch}L",
        "event_time": f"CASE WHEN __bad <> '{OUTSIDE}' THEN _event_ts END",  # what no target can hold
    }
    return [f"CAST({found.get(f.name, 'NULL')} AS {f.type}) AS {quote(f.name)}" for f in LETTER]


def unfit_columns(columns: Sequence[str], pipeline: str, source: str, epoch: int) -> list[str]:
    """Spark SQL over rows that came out of the SQL with `__unfit`: the columns of their letters, in order.

    Their bytes are those of the source where `_origin` came along, else the row as JSON.
    """
    plain = [c for c in columns if c not in (ORIGIN, "__unfit", "__bad", CORRUPT) and not _is_meta(c)]
    row = f"to_json(struct({', '.join(map(quote, plain))}), {_times()})"
    found = {"source": _text(source), "value": f"CAST({row} AS BINARY)"}
    if ORIGIN in columns:
        found = {f.name: f"{ORIGIN}.{quote(f.name)}" for f in ORIGIN_FIELDS}
    found |= {"reason": "__unfit", "pipeline": _text(pipeline), "epoch": f"{epoch}L", "event_time": "_event_ts"}
    return [f"CAST({found.get(f.name, 'NULL')} AS {f.type}) AS {quote(f.name)}" for f in LETTER]


def unfit_letters(rows: pl.DataFrame, epoch: int, pipeline: str) -> pl.DataFrame:
    """The same of frames: `__unfit`, `__start` (event time, µs) and `_origin`."""
    known = {
        "reason": pl.col("__unfit"),
        "pipeline": pl.lit(pipeline),
        "epoch": pl.lit(epoch),
        "event_time": _moment(pl.col("__start")),
    }
    found = {**{f.name: pl.col(ORIGIN).struct.field(f.name) for f in ORIGIN_FIELDS}, **known}
    return rows.select(found.get(f.name, pl.lit(None)).cast(f.polars).alias(f.name) for f in LETTER)


def holding(letters: pl.DataFrame, times: tuple[int, int] | None) -> pl.DataFrame:
    """Letters as their target can hold them: a time that it cannot hold is NULL, the row's bytes still have it."""
    if times is None:
        return letters
    return letters.with_columns(
        pl.when(pl.col(c).dt.timestamp("us").is_between(*times)).then(pl.col(c)).alias(c)
        for c in ("event_time", "watermark")
    )


def origin_column(columns: Mapping[str, str], source: str, file: str = "NULL") -> str:
    """Spark SQL over a source's rows: `_origin`. `file`: what names the file that a row is from."""
    found = _place(columns, source, file)
    return f"named_struct({', '.join(f'{_text(f.name)}, CAST({found[f.name]} AS {f.type})' for f in ORIGIN_FIELDS)}) AS {ORIGIN}"


def numbered_origin(number: str) -> str:
    """Spark SQL: an `_origin` of its type that holds nothing but a number, a column, in the place of an offset."""
    held = (f"{_text(f.name)}, CAST({number if f.name == 'offset' else 'NULL'} AS {f.type})" for f in ORIGIN_FIELDS)
    return f"named_struct({', '.join(held)}) AS {ORIGIN}"


def _place(columns: Mapping[str, str], source: str, file: str) -> dict[str, str]:
    """Where a row came from and what it was, as Spark SQL over the columns that its source has, with their types."""
    there = set(columns)
    plain = [c for c in columns if c not in ("__bad", "_event_ts", CORRUPT) and not _is_meta(c)]
    row = f"to_json(struct({', '.join(map(quote, plain))}), {_times()})" if plain else "NULL"
    text = f"coalesce({CORRUPT}, {row})" if CORRUPT in there else row
    return {
        "source": _text(source),
        "topic": "_topic" if "_topic" in there else "NULL",
        "partition": "_partition" if "_partition" in there else "NULL",
        "offset": "_offset" if "_offset" in there else "NULL",
        "key": "_key" if "_key" in there else "NULL",
        "value": "_value" if "_value" in there else f"CAST({text} AS BINARY)",
        "headers": _headers(columns.get("_headers", "")),
        "file": "NULL" if "_topic" in there else file,
    }


def _times() -> str:
    """Spark SQL: the options by which JSON holds times to the microsecond; Spark's own format ends at the millisecond."""
    pattern = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    return f"map('timestampFormat', {_text(f'{pattern}XXX')}, 'timestampNTZFormat', {_text(pattern)})"


def _headers(kind: str) -> str:
    """A record's headers as a JSON list; RabbitMQ has them as the text of a JSON object."""
    if kind.startswith("array<struct<key:string,value:binary"):
        return "to_json(_headers)"
    if kind != "string":
        return "NULL"
    pairs = "map_entries(from_json(_headers, 'MAP<STRING, STRING>'))"
    return f"to_json(transform({pairs}, h -> named_struct('key', h.key, 'value', CAST(h.value AS BINARY))))"


def late_letters(
    logic: Logic | JoinLogic, rows: pl.DataFrame, watermark: int, epoch: int, pipeline: str, held_by: str | None
) -> pl.DataFrame:
    """The letters of late rows: `__start` (event time, µs), `_origin`, and `__idle` where sources may be idle."""
    ts = rows["__start"].to_numpy()
    count, starts = np.ones(len(ts), dtype=np.int64), pl.Series([None] * len(ts), dtype=pl.String)
    if isinstance(logic, Logic) and not logic.is_session:
        first, count = panes.missed(logic, ts, watermark)
        starts = _listed(first, count, logic.hop_us)
    idle = pl.col("__idle") if "__idle" in rows.columns else pl.lit(False)
    known = {
        "reason": pl.lit(LATE),
        "pipeline": pl.lit(pipeline),
        "epoch": pl.lit(epoch),
        "event_time": _moment(pl.col("__start")),
        "cause": pl.when(idle).then(pl.lit("idle")).otherwise(pl.lit("lateness")),
        "watermark": _moment(pl.lit(watermark)),
        "watermark_source": pl.lit(held_by),
        "late_us": watermark - pl.col("__start"),
        "windows_missed": pl.lit(pl.Series(count)) if isinstance(logic, Logic) else pl.lit(None),
        "windows": pl.lit(starts),
    }
    found = rows.select(
        *(pl.col(ORIGIN).struct.field(f.name).alias(f.name) for f in ORIGIN_FIELDS),
        *(value.alias(name) for name, value in known.items()),
    )
    return found.select(pl.col(f.name).cast(f.polars) for f in LETTER)


def bad_gap_letters(rows: pl.DataFrame, epoch: int, pipeline: str) -> pl.DataFrame:
    """The letters of rows that brought no usable gap: `__ts` (event time, µs) and `_origin`."""
    known = {
        "reason": pl.lit(BAD_GAP),
        "pipeline": pl.lit(pipeline),
        "epoch": pl.lit(epoch),
        "event_time": _moment(pl.col("__ts")),
    }
    origin = {f.name: pl.col(ORIGIN).struct.field(f.name) for f in ORIGIN_FIELDS}
    found = {**origin, **known}
    return rows.select(found.get(f.name, pl.lit(None)).cast(f.polars).alias(f.name) for f in LETTER)


def _moment(us: pl.Expr) -> pl.Expr:
    return us.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


def _listed(first: Int64s, count: Int64s, hop: int) -> pl.Series:
    """Window starts as JSON lists of ISO times, at most `WINDOWS_SHOWN` each."""
    shown = np.minimum(count, WINDOWS_SHOWN)
    row = np.repeat(np.arange(len(first)), shown)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(shown) - shown, shown)
    spread = pl.DataFrame({"row": row, "start": first[row] + nth * hop})
    text = pl.col("start").cast(pl.Datetime("us")).dt.strftime('"%Y-%m-%dT%H:%M:%S%.fZ"')
    joined = spread.group_by("row", maintain_order=True).agg(text.str.join(", "))["start"]
    return "[" + joined + "]"


def _is_meta(column: str) -> bool:
    return column in ("_topic", "_partition", "_offset", "_key", "_value", "_headers")


def _text(value: str) -> str:
    """A string as a Spark SQL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
