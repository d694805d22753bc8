"""Integrity checks of the state rows of windows, joins and keyed functions, and the report of a verification.

A check yields a description of each problem, usually with the number of affected rows. The rows of a key, or of a key
in one pane, form a unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.hashing import key_hash, mix_bits, shard_of
from slackwater.core.humanize import mismatch, plural
from slackwater.core.schema import Field
from slackwater.errors import raise_unregistered
from slackwater.joins.compiled_join import JoinSide
from slackwater.joins.join_buffers import build_row_references
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.state.commit import SegmentMetadata, StageState
from slackwater.state.files.join_buffers import describe_segment
from slackwater.windows import pane_windows
from slackwater.windows.compiled_session_window import count_open_sessions
from slackwater.windows.state_layout import (
    CLEAN,
    DIRTY,
    EMITTED,
    EMITTED_FRAGMENT,
    FLOOR,
    FRAGMENT,
    HIDDEN,
    REVISED,
    TOMBSTONE,
    WHOLE,
    KeyedStateLayout,
)


@dataclass(frozen=True)
class Problem:
    """One problem in a state.

    Args:
        place: The file or table with the problem.
        what: A description of the problem.
        epochs: The epochs of the commits that the problem affects.
        remedy: What the user can do about the problem.
    """

    place: str
    what: str
    epochs: tuple[int, ...] = ()
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}"


@dataclass
class VerifyReport:
    """The result of checking a state.

    Args:
        pipeline: The name of the pipeline.
        store: The kind of state store.
        problems: The problems of the rows.
        epochs: The epochs of the commits that were checked.
        sound: The epoch of the last commit without problems; None if every commit has problems.
        files: The number of files, or of tables in a database, that were checked.
        rows: The number of rows that were checked.
        bytes: The number of bytes that were checked.
        unread: The number of stages whose rows were not checked, because the state does not describe their window.
        seconds: The duration of the check in seconds.
    """

    pipeline: str
    store: str
    problems: list[Problem] = field(default_factory=list)
    epochs: tuple[int, ...] = ()
    sound: int | None = None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    unread: int = 0
    seconds: float = 0.0


def format_remedy(problem: Problem, kept_epochs: Sequence[int], sound: int | None, copy: str) -> str:
    """Return the remedy for a problem.

    Args:
        problem: The problem.
        kept_epochs: The epochs of the stored commits, ascending.
        sound: The epoch of the last commit without problems; None if every commit has problems.
        copy: A noun phrase for the backup, such as "a copy of the state directory".
    """
    if problem.epochs and kept_epochs and kept_epochs[-1] not in problem.epochs:
        which = f"epoch {problem.epochs[0]}" if len(problem.epochs) == 1 else f"epochs {_span(problem.epochs)}"
        return f"it is needed only by {which}, and a run continues without it; restore it from {copy}, or leave it"
    if sound is None:
        return f"restore it from {copy}; no kept commit is sound"
    if kept_epochs and sound == kept_epochs[-1]:
        return f"restore it from {copy}"
    return f"restore it from {copy}, or start from epoch {sound}, the last sound commit: slackwater state fork WHERE NEW --at {sound}"


def _span(epochs: Sequence[int]) -> str:
    return f"{epochs[0]} to {epochs[-1]}"


# -- checks of state rows ------------------------------------------------------------------------------------------------


_SESSION_KINDS = (WHOLE, FRAGMENT, FLOOR, TOMBSTONE, EMITTED, EMITTED_FRAGMENT)
_PANE_KINDS = (CLEAN, DIRTY, TOMBSTONE)


@singledispatch
def check_segment_rows(
    operator: Operator, kind: str, rows: pl.DataFrame, shard: int, shards: int, exact: bool = True
) -> Iterator[str]:
    """Describe the problems in the rows of one shard.

    Args:
        operator: The operator of the stage.
        kind: The kind of the segment; used only for joins.
        rows: The rows in their stored order.
        shard: The index of the shard.
        shards: The number of shards.
        exact: Whether the rows were stored for the emission settings of the operator. If not, checks that depend on
            these settings are skipped.
    """
    raise_unregistered(operator, "slackwater.maintenance.verify_rows.check_segment_rows")


@check_segment_rows.register(WindowOperator)
@check_segment_rows.register(KeyedOperator)
def _(
    operator: WindowOperator | KeyedOperator, kind: str, rows: pl.DataFrame, shard: int, shards: int, exact: bool = True
) -> Iterator[str]:
    schema = {c: t for c, t in operator.state_schema.items() if exact or c not in REVISED}
    misfits = list(_schema_problems(rows, schema))
    yield from misfits
    if misfits:
        return
    h, kind_codes, start, last = (rows[c].to_numpy() for c in ("__h", "__kind", "__start", "__last"))
    yield from _check_hashes(rows, operator.keys, operator.keys, shard, shards)
    yield from _count_problem(h[1:] < h[:-1], "not in the order of their units")
    yield from _count_problem((kind_codes != TOMBSTONE) & (start > last), "that end before they start")
    yield from _check_units(operator, rows, exact)


@singledispatch
def _check_units(operator: Operator, rows: pl.DataFrame, exact: bool) -> Iterator[str]:
    """Describe the problems in the units, kinds and times of state rows."""
    raise_unregistered(operator, "slackwater.maintenance.verify_rows.check_segment_rows")


@_check_units.register
def _(operator: PaneWindowOperator, rows: pl.DataFrame, exact: bool) -> Iterator[str]:
    h, kh, kind, start, due = (rows[c].to_numpy() for c in ("__h", "__kh", "__kind", "__start", "__due"))
    is_known, alive = np.isin(kind, _PANE_KINDS), kind != TOMBSTONE
    yield from _count_problem(h != mix_bits(kh, start), "in the unit of another key or pane")
    yield from _count_problem(~is_known, "of an unknown kind")
    misplaced = is_known & alive & (start != pane_windows.pane_start(operator, start))
    yield from _count_problem(misplaced, "that do not start with a pane")
    if exact:
        late = is_known & alive & (due != pane_windows.pane_due_times(operator, start))
        yield from _count_problem(late, "whose due time does not match their pane")


@_check_units.register
def _(operator: SessionWindowOperator, rows: pl.DataFrame, exact: bool) -> Iterator[str]:
    h, kh, kind, last, due = (rows[c].to_numpy() for c in ("__h", "__kh", "__kind", "__last", "__due"))
    is_known, alive = np.isin(kind, _SESSION_KINDS), kind != TOMBSTONE
    yield from _count_problem(h != kh, "in the unit of another key or pane")
    yield from _count_problem(~is_known, "of an unknown kind")
    end = rows["__end"].to_numpy() if operator.dynamic else last + operator.gap_us
    yield from _count_problem(is_known & alive & (end < last), "whose gap ends before their last event")
    whole, floor = np.isin(kind, (WHOLE, EMITTED)), kind == FLOOR
    fragments = np.isin(kind, (FRAGMENT, EMITTED_FRAGMENT))
    late = (fragments & (due > end + 1)) | (whole & (due != end + 1)) | (floor & (due != end + operator.reach_us + 1))
    yield from _count_problem(late, "whose due time does not match their gap")


@_check_units.register
def _(operator: KeyedOperator, rows: pl.DataFrame, exact: bool) -> Iterator[str]:
    h, kh, kind = (rows[c].to_numpy() for c in ("__h", "__kh", "__kind"))
    yield from _count_problem(h != kh, "in the unit of another key")
    yield from _count_problem(~np.isin(kind, (WHOLE, TOMBSTONE)), "of an unknown kind")


@singledispatch
def check_row_counts(operator: Operator, rows: pl.DataFrame, state: StageState, shard: int) -> Iterator[str]:
    """Describe how the rows of a shard differ from the counts in the commit.

    Args:
        operator: The operator of the stage.
        rows: All rows of the shard.
        state: The stage in the commit.
        shard: The index of the shard.
    """
    raise_unregistered(operator, "slackwater.maintenance.verify_rows.check_row_counts")


@check_row_counts.register
def _(operator: PaneWindowOperator, rows: pl.DataFrame, state: StageState, shard: int) -> Iterator[str]:
    groups_by_start = dict(rows["__start"].value_counts().iter_rows())
    for start, groups in state.panes.items():
        if (count := groups_by_start.get(start, 0)) != groups[shard]:
            yield f"{plural(count, 'key')} in the pane at {start} µs, but the commit says {groups[shard]:,}"


@check_row_counts.register
def _(operator: SessionWindowOperator, rows: pl.DataFrame, state: StageState, shard: int) -> Iterator[str]:
    counts = count_open_sessions(operator, rows, state.watermark_us)
    recorded = (state.groups[shard], state.windows[shard])
    if counts != recorded:
        stored = f"{plural(counts[0], 'key')} with {plural(counts[1], 'open interval')}"
        yield f"{stored}, but the commit says {recorded[0]:,} with {recorded[1]:,}"


@check_row_counts.register
def _(operator: KeyedOperator, rows: pl.DataFrame, state: StageState, shard: int) -> Iterator[str]:
    counts, recorded = operator.count_state(rows, state.watermark_us), (state.groups[shard], state.windows[shard])
    if counts != recorded:
        stored = f"{plural(counts[0], 'key')} in {plural(counts[1], 'row')}"
        yield f"{stored}, but the commit says {recorded[0]:,} in {recorded[1]:,}"


@check_segment_rows.register
def _(
    operator: IntervalJoinOperator, kind: str, rows: pl.DataFrame, shard: int, shards: int, exact: bool = True
) -> Iterator[str]:
    """Describe the problems in one segment of a join side.

    Kind `left` contains buffered rows, `left+` the ids of matched rows, and `left-` the ids of evicted rows.
    """
    side, suffix = _parse_side(operator, kind)
    if side is None:
        yield f"rows of an unknown kind: {kind!r}"
        return
    rows = rows if suffix else side.add_missing_columns(rows)
    misfits = list(_schema_problems(rows, dict(build_row_references().schema) if suffix else side.schema))
    yield from misfits
    if misfits:
        return
    kh, ts, id_ = (rows[c].to_numpy() for c in ("__kh", "__ts", "__id"))
    if suffix:
        yield from _count_problem(shard_of(kh, shards) != shard, f"that do not belong to shard {shard}")
        yield from _count_problem(id_[1:] < id_[:-1], "not in the order of their numbers")
        return
    yield from _check_hashes(rows, side.keys, _shared_keys(operator), shard, shards)
    unordered = (kh[1:] < kh[:-1]) | ((kh[1:] == kh[:-1]) & (ts[1:] < ts[:-1]))
    yield from _count_problem(unordered, "not in the order of key and time")


@check_segment_rows.register
def _(
    operator: StatelessOperator, kind: str, rows: pl.DataFrame, shard: int, shards: int, exact: bool = True
) -> Iterator[str]:
    yield mismatch(plural(rows.height, "row"), "none in this stage")


def _parse_side(operator: IntervalJoinOperator, kind: str) -> tuple[JoinSide | None, str]:
    """Return the side of a segment (None if unknown), and the suffix of its kind.

    The suffix is "+" for ids of matched rows, "-" for ids of evicted rows, and "" for the rows themselves.
    """
    name, suffix = kind.rstrip("+-"), kind[len(kind.rstrip("+-")) :]
    return next((s for s in operator.sides if s.name == name and suffix in ("", "+", "-")), None), suffix


def _shared_keys(operator: IntervalJoinOperator) -> list[Field]:
    """Return the key columns with the types, common to both sides, that the key hashes are computed from."""
    pairs = zip(operator.left.keys, operator.right.keys, strict=True)
    return [a if a.type == b.type else Field(a.name, "bigint") for a, b in pairs]


def check_segment_times(operator: Operator, rows: pl.DataFrame, meta: SegmentMetadata) -> Iterator[str]:
    """Describe how the rows of a segment differ from its metadata."""
    if isinstance(operator, IntervalJoinOperator):
        side, suffix = _parse_side(operator, meta.kind)
        assert side is not None
        segment = describe_segment(side, suffix, rows, meta.file, meta.bytes)
        figures = segment.model_dump(include={"first_due", "last_due", "close", "dead", "most"})
    else:
        assert isinstance(operator, KeyedStateLayout)
        figures = operator.stats(rows)._asdict()
    for name, value in figures.items():
        if getattr(meta, name) != value:
            yield f"its rows have {name} {value}, but the commit says {getattr(meta, name)}"


def _schema_problems(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> Iterator[str]:
    missing = [c for c in schema if c not in rows.columns]
    if missing:
        yield f"columns are missing: {', '.join(missing)}"
    for name, dtype in schema.items():
        if name not in missing and rows.schema[name] != dtype:
            yield f'column "{name}" is {rows.schema[name]}, expected {dtype}'
    nulls = [c for c in schema if c in (*HIDDEN, "__ts", "__id") and c not in missing and rows[c].null_count()]
    if nulls:
        yield f"NULL in the columns {', '.join(nulls)}"


def _check_hashes(
    rows: pl.DataFrame, keys: Sequence[Field], shared: Sequence[Field], shard: int, shards: int
) -> Iterator[str]:
    kh = rows["__kh"].to_numpy()
    renamed = rows.select(pl.col(k.name).alias(s.name) for k, s in zip(keys, shared, strict=True)) if keys else rows
    yield from _count_problem(kh != key_hash(renamed, list(shared)).to_numpy(), "whose hash does not match their key")
    yield from _count_problem(shard_of(kh, shards) != shard, f"that do not belong to shard {shard}")


def _count_problem(is_wrong: NDArray[np.bool_], problem: str) -> Iterator[str]:
    if count := int(is_wrong.sum()):
        first = int(np.flatnonzero(is_wrong)[0])
        yield f"{count:,} row{'s' if count > 1 else ''} {problem}, first row {first}"
