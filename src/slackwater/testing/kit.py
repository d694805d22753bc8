"""A public kit for tests: scripted sources, a virtual clock, and crashes at named steps, on the in-process engine.

    result = run_local(window, [Rows({"a": [{"ts": 0, "user": "u"}]}), Crash("commit.before"), Quiet(500)],
                       schema={"user": "string"}, sources=("a",))

One `Rows` is one micro-batch of all sources. A `Crash` is armed for the next epoch: the driver dies at that step, is
started again on the same store and target, and the batch is replayed as Spark would.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.config.connection import DeltaConnection, FilesConnection, KafkaConnection
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline, Stage, Transform
from slackwater.config.source import Source
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window
from slackwater.core.dead_letter import LETTER
from slackwater.core.schema import Field
from slackwater.engine import fold
from slackwater.engine.driver import Driver, Hooks
from slackwater.engine.far_dates import FarDates
from slackwater.engine.kill_points import STEPS
from slackwater.engine.stage import Stage as Stepping
from slackwater.engine.status import Counters, Status
from slackwater.operators import compile as compiling
from slackwater.operators.base import Operator
from slackwater.replay import replay
from slackwater.replay.replay import Outcome
from slackwater.sources.base import Batch
from slackwater.state import protocol
from slackwater.state.commit import BatchId
from slackwater.state.files.store import FilesStore
from slackwater.testing.local import LocalEngine
from slackwater.watermark import NO_WATERMARK

_TIMES = (pl.Datetime("us"), pl.Datetime("us", "UTC"))
START_US = 4_000_000_000_000_000  # the virtual clock's first reading: after every event time a test may use


@dataclass(frozen=True)
class Rows:
    """One micro-batch: rows per source, in arrival order; `ts` in microseconds.

    `partitions`: per source that has any, all partitions there are; `partition` of a row then names its own. `took_ms`: how
    long the epoch takes on the virtual clock.
    """

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    took_ms: int = 0


@dataclass(frozen=True)
class Quiet:
    """The engine asks all sources and finds nothing for `ms` milliseconds."""

    ms: int


@dataclass(frozen=True)
class Replay:
    """Apply the dead letters there are by now, at most `limit` of them. `dry`: only find out."""

    limit: int | None = None
    dry: bool = False


@dataclass(frozen=True)
class Crash:
    """The next epoch dies at this step (see STEPS). `shards`: how many there are from the start after it, if others."""

    step: str
    shards: int | None = None


@dataclass(frozen=True)
class Restart:
    """The runner stops and starts again over the same state: with what is given here changed. `target`: the name of another."""

    step: Window | Join | None = None
    shards: int | None = None
    sources: Sequence[str] | None = None
    then: Window | None = None
    target: str | None = None


class Died(BaseException):
    """The scripted death of a driver; not an Exception, so that nothing handles it by accident."""


@dataclass
class LocalResult:
    """What a run published and counted. `gone`: identities of superseded rows; `letters`: the dead ones; `statuses`: one per
    commit, over all restarts; `epochs`: the epoch that each item of the script left behind it; `former`: rows and gone of
    the other targets there were, by name (the first is "")."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    former: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    watermark_us: int = NO_WATERMARK
    open_sessions: int = 0  # at the end, and the keys they have
    open_keys: int = 0
    replays: list[Outcome] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)


class _Target:
    """Keeps what was published, and the last epoch: the other side of a crash."""

    guarantee = "exactly once"
    description = "memory"

    def __init__(self, columns: Sequence[Field], identity: Sequence[str], upserts: bool = True) -> None:
        self.upserts, self._identity = upserts, list(identity)
        self.last, self.rows, self.gone = -1, list[dict[str, Any]](), list[dict[str, Any]]()
        self._schema = {f.name: f.polars for f in columns}
        self.told: Callable[[pl.DataFrame], None] = lambda rows: None
        self._changes: list[tuple[pl.DataFrame, pl.DataFrame | None]] = []

    def becomes(self, columns: Sequence[Field], identity: Sequence[str]) -> None:
        """Other columns from now on; rows that are there have NULL in new ones."""
        schema = {f.name: f.polars for f in columns}

        def fitting(rows: pl.DataFrame) -> pl.DataFrame:
            return rows.with_columns(pl.lit(None, t).alias(c) for c, t in schema.items() if c not in rows.columns)

        self._changes = [(fitting(r), None if g is None else fitting(g)) for r, g in self._changes]
        self._schema, self._identity = schema, list(identity)

    def hold(self, rows: pl.DataFrame) -> None:
        """Rows that are there before the run."""
        self._changes.append((rows, None))

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None) -> None:
        if epoch <= self.last:
            return
        self.told(rows)
        self.rows += _plain(rows, epoch)
        self.gone += [] if gone is None else _plain(gone, epoch)
        self.last = epoch
        self._changes.append((rows, gone))

    @property
    def table(self) -> pl.DataFrame:
        """What it holds: worked out when it is asked for."""
        table = pl.DataFrame(schema=self._schema)
        for rows, gone in self._changes:
            for changed in () if not self._identity else (rows, gone):
                if changed is not None:
                    table = table.join(changed, on=self._identity, how="anti", nulls_equal=True)
            table = pl.concat([table, rows.select(table.columns)])
        return table

    def stored(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        keys = [c for c in self._identity if c != column]
        at = pl.col(column).dt.timestamp("us").is_between("__low", "__high")
        near = self.table.join(ranges, on=keys, nulls_equal=True) if keys else self.table.join(ranges, how="cross")
        return near.filter(at).select(list(self._schema))


def _plain(rows: pl.DataFrame, epoch: int) -> list[dict[str, Any]]:
    if rows.is_empty():
        return []
    columns = [c.cast(pl.Int64) if c.dtype in _TIMES else c for c in rows.get_columns()]  # in µs
    return [{**r, "_epoch": epoch} for r in pl.DataFrame(columns).iter_rows(named=True)]


class _Faults:
    def __init__(self) -> None:
        self.step: str | None = None

    def hit(self, step: str, epoch: int) -> None:
        if step == self.step:
            self.step = None
            raise Died(step)

    def in_worker(self, epoch: int) -> Callable[[str], None]:
        return lambda step: self.hit(step, epoch)


_TOPIC = KafkaConnection(bootstrap_servers="none")


def _described_as(step: Window | Join, upserts: bool) -> Target:
    """A target that does what the kit's own does; columns of a Delta table cannot have every name, those of a message can."""
    names = [] if isinstance(step, Join) else [*step.group_by, *(a.as_ or "" for a in step.aggregations)]
    if upserts and any(set(" ,;{}()\n\t=") & set(name) for name in names):
        return Target(connection="topic", topic="out")
    return Target(connection="table", path="out", mode="merge" if upserts else "append")


def pipeline_for(
    step: Window | Join,
    sources: Sequence[str],
    lateness_ms: Mapping[str, int] | None = None,
    name: str = "law",
    on_error: str = "drop",
    upserts: bool = True,
    then: Window | None = None,
) -> Pipeline:
    """A pipeline over scripted sources; its target and store are the kit's own."""
    kept = on_error == "dlq" or step.late_data in ("dlq", "reopen")
    described = {"join": step} if isinstance(step, Join) else {"window": step}
    upserts = upserts and (then is not None or not isinstance(step, Join))
    if then is not None:
        stages = (Stage(name="first", on_error=on_error, **described), Stage(name="second", window=then))
    letters = Target(connection="lake", path="letters") if kept else None
    return Pipeline(
        name=name,
        sources=tuple(Source(name=s, dataframe=object(), lateness_ms=(lateness_ms or {}).get(s)) for s in sources),
        transform=Transform(**described, on_error=on_error) if then is None else None,
        stages=None if then is None else stages,
        # the kit's own replaces rows, or adds them, as this one would
        target=_described_as(step if then is None else then, upserts),
        connections={"table": DeltaConnection(), "lake": FilesConnection(), "topic": _TOPIC},
        dead_letter=letters,
        state_store=StateStore(kind="files", path="state"),
    )


def run_local(
    step: Window | Join,
    script: Sequence[Rows | Quiet | Crash | Replay | Restart],
    schema: Mapping[str, str],
    sources: Sequence[str] = ("a",),
    shards: int = 2,
    flush: bool = True,
    state_dir: str | None = None,
    reshard_after: int | None = None,
    reshard_to: int = 3,
    lateness_ms: Mapping[str, int] | None = None,
    clock_us: int = START_US,
    store: Callable[[], protocol.StateStore] | None = None,
    upserts: bool = True,
    on_error: str = "drop",
    letters: Sequence[Mapping[str, Any]] = (),
    then: Window | None = None,
    on_publish: Callable[[pl.DataFrame], None] | None = None,
) -> LocalResult:
    """Run a script to its end, and flush. Raises what a start raises, which a `Restart` may make. `then`: a window over what the first step emits. Both sides of a join have one schema. `reshard_after`: restart with `reshard_to` shards after that script item.

    `letters`: dead ones that are there before, as a result has them.

    `upserts`: whether the target replaces rows; else superseded ones are among its rows.
    `on_publish`: gets what each epoch writes to the target. `store`: makes the state store, at each start anew; else files in `state_dir`, or in a temporary directory.
    """
    if state_dir is None:
        with tempfile.TemporaryDirectory() as directory:
            return run_local(
                step,
                script,
                schema,
                sources,
                shards,
                flush,
                directory,
                reshard_after,
                reshard_to,
                lateness_ms,
                clock_us,
                store,
                upserts,
                on_error,
                letters,
                then,
                on_publish,
            )
    fields = {name: Field(name, spark) for name, spark in schema.items()}
    given_upserts = upserts

    def described() -> tuple[Pipeline, Operator, Operator]:
        """The pipeline, its step and the one whose results come out."""
        made = pipeline_for(step, sources, lateness_ms, on_error=on_error, upserts=given_upserts, then=then)
        first: Operator = (
            compiling.compile_join(made, (fields, fields))
            if isinstance(step, Join)
            else compiling.compile_window(made, fields)
        )
        if then is None:
            return made, first, first
        return made, first, compiling.compile_window(made.last, {f.name: f for f in first.output})

    pipeline, logic, last = described()
    upserts = upserts and last.identity is not None
    frame_schema = {"ts": pl.Int64(), **{f.name: f.polars for f in fields.values()}}
    target = _Target(last.output, last.identity or (), upserts)
    target.told = on_publish or target.told
    targets = {"": target}
    aside, faults, result = _Target(LETTER, (), upserts=False), _Faults(), LocalResult()
    aside.hold(_frame(letters, {f.name: f.polars for f in LETTER}))
    now, state_id = clock_us, uuid.uuid4().hex

    def begin(shards: int) -> Driver:
        try:
            return begun(shards)
        except Died:
            return begun(shards)

    def begun(shards: int) -> Driver:
        hooks = Hooks(lambda: now, on_status=result.statuses.append, faults=faults)
        held: protocol.StateStore = store() if store else FilesStore(state_dir or "", pipeline.name)
        engine = LocalEngine(logic, sources, pipeline.carries_origin, step.max_future_ms)
        (name, own), *more = pipeline.alone.items()
        stages = [Stepping(name, own, logic, held, engine, faults.in_worker, far_dates=FarDates(own))]
        for name, own in more:
            read = own.sources[0].name
            behind = LocalEngine(last, [read], max_future_ms=own.transform.step.max_future_ms)
            held_us = {read: 1000 * pipeline.hold_ms}
            stages.append(Stepping(name, own, last, held, behind, faults.in_worker, 1, held_us))
        driver = Driver(pipeline, stages, held, target, hooks, aside)
        try:
            driver.start(driver.store.open(), shards, {}, state_id)
        except BaseException:
            driver.store.close()
            raise
        return driver

    def again(found: pl.DataFrame) -> Mapping[str, pl.DataFrame]:
        rows = [_decoded(value) for value in found["value"]]
        return {sources[0]: _frame(rows, frame_schema).with_columns(found["__letter"])}

    def applied(item: Replay) -> None:
        result.replays.append(replay.replay(driver, aside.table, again, item.dry, item.limit))

    driver = begin(shards)
    batch_number, checkpoint = 0, uuid.uuid4().hex
    reshard: int | None = None
    try:
        for index, item in enumerate(script):
            if isinstance(item, Crash):
                if item.step not in STEPS:
                    raise ValueError(f"unknown step {item.step!r}, expected one of {STEPS}")
                faults.step, reshard = item.step, item.shards
                result.epochs.append(driver.state.epoch)
                continue
            if isinstance(item, Restart):
                driver.store.close()
                step, shards, sources = item.step or step, item.shards or shards, item.sources or sources
                then = item.then or then
                pipeline, logic, last = described()
                if item.target is not None:
                    fresh = _Target(last.output, last.identity or (), upserts)
                    fresh.told = target.told
                    target = targets.setdefault(item.target, fresh)
                target.becomes(last.output, (last.identity or ()) if upserts else ())
                driver = begin(shards)
                result.epochs.append(driver.state.epoch)
                continue
            try:
                if isinstance(item, Replay):
                    applied(item)
                elif isinstance(item, Quiet):
                    now += item.ms * 1000
                    driver.tick(item.ms * 1000)
                else:
                    batch = _batch(checkpoint, batch_number, item, frame_schema)
                    batch_number += 1
                    now += item.took_ms * 1000
                    driver.run_batch(batch, 0)
                    faults.hit("checkpoint.before", driver.state.epoch)
                    faults.hit("checkpoint.after", driver.state.epoch)
            except Died:
                driver.store.close()
                shards, reshard = reshard or shards, None
                driver = begin(shards)
                if isinstance(item, Rows):
                    driver.run_batch(batch, 0)
                elif isinstance(item, Replay):
                    applied(item)
            if index == reshard_after:
                driver.store.close()
                shards = reshard_to
                driver = begin(shards)
            result.epochs.append(driver.state.epoch)
        if flush:
            try:
                driver.flush()
            except Died:
                driver.store.close()
                driver = begin(shards)
                driver.flush()
    finally:
        driver.store.close()
    result.rows, result.gone, result.letters = target.rows, target.gone, aside.rows
    result.former = {name: (t.rows, t.gone) for name, t in targets.items() if t is not target}
    result.counters = fold.counters(driver.state)
    result.watermark_us = driver.state.watermark_us
    ended = driver.state.stages[-1]
    result.open_sessions, result.open_keys = sum(ended.windows), sum(ended.groups)
    return result


def _decoded(value: bytes) -> dict[str, Any]:
    """A letter's row; what is no JSON has no time, and so is bad again."""
    try:
        return dict(json.loads(value))
    except ValueError:
        return {}


def _batch(checkpoint: str, number: int, item: Rows, schema: Mapping[str, pl.DataType]) -> Batch:
    payload, partitions = {}, {}
    for source, rows in item.rows.items():
        payload[source] = _frame(rows, schema)
        if source in item.partitions:
            names = [r["partition"] for r in rows]
            payload[source] = payload[source].with_columns(pl.Series("__partition", names, dtype=pl.String))
            partitions[source] = {p: names.count(p) for p in item.partitions[source]}
    return Batch(BatchId(checkpoint=checkpoint, batch=number), {}, payload, partitions=partitions)


def _frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    def plain(value: Any, dtype: pl.DataType) -> pl.Series:
        if isinstance(dtype, pl.Datetime):
            return pl.Series(value, dtype=pl.Int64).cast(pl.Datetime("us")).cast(dtype)
        return pl.Series(value, dtype=dtype)

    return pl.DataFrame({n: plain([r.get(n) for r in rows], t).alias(n) for n, t in schema.items()})


__all__ = ["STEPS", "Crash", "Died", "LocalResult", "Quiet", "Replay", "Restart", "Rows", "pipeline_for", "run_local"]
