"""In-memory target that survives simulated crashes, and the result of a test run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.core.notebook_repr import TerminalRepr
from slackwater.core.schema import ANYTHING, Field, ValueLimits
from slackwater.dead_letters.replay import ReplayResult
from slackwater.engine.observer import Counters, Status
from slackwater.errors import PublishError
from slackwater.operators.base import Operator
from slackwater.watermark import NO_WATERMARK

_TIMES = (pl.Datetime("us"), pl.Datetime("us", "UTC"))


class MemoryTarget:
    """Target that stores published rows in memory.

    Publishing fails while `down` is set. `repeated` counts the epochs that were published again.

    Args:
        columns: The columns of the rows.
        identity: The columns that identify a row.
        upserts: Whether a row replaces an earlier row with the same identity.
        capacity: The limits on values that the target can store.
    """

    guarantee = "exactly once"
    description = "memory"

    def __init__(
        self, columns: Sequence[Field], identity: Sequence[str], upserts: bool = True, capacity: ValueLimits = ANYTHING
    ) -> None:
        self.upserts, self.capacity, self._identity = upserts, capacity, list(identity)
        self.down, self.repeated = False, 0
        self.last, self.rows, self.gone = -1, list[dict[str, Any]](), list[dict[str, Any]]()
        self._schema = {f.name: f.polars for f in columns}
        self.on_publish: Callable[[pl.DataFrame], None] = lambda rows: None
        self._changes: list[tuple[pl.DataFrame, pl.DataFrame | None]] = []

    def change_schema(self, columns: Sequence[Field], identity: Sequence[str]) -> None:
        """Change the columns and the identity. Existing rows have NULL in new columns."""
        schema = {f.name: f.polars for f in columns}

        def with_new_columns(rows: pl.DataFrame) -> pl.DataFrame:
            return rows.with_columns(pl.lit(None, t).alias(c) for c, t in schema.items() if c not in rows.columns)

        self._changes = [(with_new_columns(r), None if g is None else with_new_columns(g)) for r, g in self._changes]
        self._schema, self._identity = schema, list(identity)

    def preload(self, rows: pl.DataFrame) -> None:
        """Add rows that exist before the run."""
        self._changes.append((rows, None))

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        if self.down:
            raise PublishError(f"{self.description} is down: it did not accept epoch {epoch}")
        if epoch <= self.last:
            self.repeated += 1
            return
        self.on_publish(rows)
        self.rows += _to_dicts(rows, epoch)
        self.gone += [] if superseded is None else _to_dicts(superseded, epoch)
        self.last = epoch
        self._changes.append((rows, superseded))

    @property
    def table(self) -> pl.DataFrame:
        """Return the current rows, in which each row has replaced earlier rows with the same identity."""
        table = pl.DataFrame(schema=self._schema)
        for rows, gone in self._changes:
            for changed in () if not self._identity else (rows, gone):
                if changed is not None:
                    table = table.join(changed, on=self._identity, how="anti", nulls_equal=True)
            table = pl.concat([table, rows.select(table.columns)])
        return table

    @property
    def held(self) -> pl.DataFrame:
        """Return the rows that readers see: `table` if the target upserts, otherwise all rows ever added."""
        if self.upserts or not self._changes:
            return self.table
        columns = list(self._schema)
        return pl.concat([rows.select(columns) for rows, _ in self._changes])

    def read_ranges(self, ranges: pl.DataFrame, column: str) -> pl.DataFrame:
        keys = [c for c in self._identity if c != column]
        in_range = pl.col(column).dt.timestamp("us").is_between("__low", "__high")
        near = self.table.join(ranges, on=keys, nulls_equal=True) if keys else self.table.join(ranges, how="cross")
        return near.filter(in_range).select(list(self._schema))


def _to_dicts(rows: pl.DataFrame, epoch: int) -> list[dict[str, Any]]:
    if rows.is_empty():
        return []
    columns = [c.cast(pl.Int64) if c.dtype in _TIMES else c for c in rows.get_columns()]  # in µs
    name = "__epoch" if "_epoch" in rows.columns else "_epoch"  # as in the views of a state
    return [{**r, name: epoch} for r in pl.DataFrame(columns).iter_rows(named=True)]


def create_memory_targets(
    pipeline: Pipeline,
    operators: Mapping[str, Operator],
    capacities: Mapping[str, ValueLimits],
    all_targets: dict[tuple[str, str], MemoryTarget],
    target_name: str,
    on_publish: Callable[[pl.DataFrame], None] | None,
) -> dict[str, MemoryTarget]:
    """Return the targets of a pipeline by name. Reuses existing targets and their rows.

    Args:
        pipeline: The pipeline.
        operators: The operators of the pipeline, by stage.
        capacities: The limits on values that each target can store, by target.
        all_targets: All targets of the test, by name in the config and `target_name`. Missing targets are added.
        target_name: A name chosen by the test. Targets with a different name keep their rows but are not used.
        on_publish: A function to call with the published rows of each epoch, or None.
    """
    targets = dict[str, MemoryTarget]()
    for name, target_pipeline in pipeline.per_target.items():
        spec, operator = target_pipeline.target, operators[str(target_pipeline.target.from_)]
        connection = resolve_connection(spec.connection, target_pipeline.connections)
        window = target_pipeline.target_stage.transform.window
        upserts = connection is not None and spec.upserts(connection.kind, window)
        # the target of a config with only one target is reused even if its stage is renamed
        key = (name if pipeline.targets else "", target_name)
        if key in all_targets:
            all_targets[key].change_schema(operator.output, (operator.identity or ()) if upserts else ())
        else:
            capacity = capacities.get(name, ANYTHING)
            all_targets[key] = MemoryTarget(operator.output, operator.identity or (), upserts, capacity)
            all_targets[key].on_publish = on_publish or all_targets[key].on_publish
        targets[name] = all_targets[key]
    return targets


# -- results -------------------------------------------------------------------------------------------------------------


START_US = 4_000_000_000_000_000  # the start of the virtual clock (µs), after all event times that tests use


class SimulatedCrash(BaseException):
    """Simulated crash of the driver. A BaseException, so that no `except Exception` catches it."""


@dataclass
class LocalResult(TerminalRepr):
    """The published rows and the counters of a run.

    Args:
        rows: All rows ever published to the first target, with `_epoch`. Times are in microseconds.
        gone: The identities of superseded results in the first target, with `_epoch`.
        letters: The dead letters.
        former: `rows` and `gone` of targets that are no longer in use, by name; "" for the original, unnamed target.
        counters: The counters, summed over all stages.
        watermark_us: The watermark at the end (µs).
        open_sessions: The number of sessions of the last stage that are open at the end.
        open_keys: The number of keys of the last stage that have open sessions at the end.
        replays: The result of each replay of dead letters.
        statuses: The status of each commit, including those before a crash or a restart.
        epochs: The latest epoch after each action; empty unless a script ran the test.
        table: The rows that a reader of the first target sees.
        tables: The rows that a reader of each target sees, by target name.
        stages: The results of each stage that has a target or is one of `extra_stages`, by stage name.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    former: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    watermark_us: int = NO_WATERMARK
    open_sessions: int = 0
    open_keys: int = 0
    replays: list[ReplayResult] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    table: pl.DataFrame = field(default_factory=pl.DataFrame)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    stages: dict[str, pl.DataFrame] = field(default_factory=dict)


class LocalFaults:
    """Injects a crash the `nth` time that the kill point `step` is reached. No crash is due while `step` is None."""

    def __init__(self) -> None:
        self.step: str | None = None
        self.nth = 1

    def hit(self, step: str, epoch: int) -> None:
        if step != self.step:
            return
        self.nth -= 1
        if self.nth < 1:
            self.step, self.nth = None, 1
            raise SimulatedCrash(step)

    def in_worker(self, epoch: int) -> Callable[[str], None]:
        return lambda step: self.hit(step, epoch)
