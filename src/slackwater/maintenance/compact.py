"""`slackwater state compact`: rewrite a state without its expired rows, in a commit that reads no input.

    shard 0   [seg 3] [seg 17] [seg 18]     ─▶  [seg 19]        epoch + 1; sources, offsets and watermark unchanged
    shard 1   [seg 5] [seg 18]              ─▶  [seg 19]

The command holds the lock on the pipeline's state, so it fails while a runner is active. In a database, it deletes
expired rows and runs VACUUM to make their space reusable.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

import psycopg

from slackwater.errors import StateError, Topic
from slackwater.evolution import state_migration
from slackwater.evolution.pipeline_from_state import matches_description, restore_operator
from slackwater.maintenance.state_sizes import StateSizes, measure_state_sizes
from slackwater.operators.base import Operator
from slackwater.state.commit import Commit, StageState
from slackwater.state.postgres import client
from slackwater.state.postgres.store import PostgresStore
from slackwater.state.protocol import StateStore


@dataclass(frozen=True)
class CompactionResult:
    """The sizes of a state before and after compaction."""

    before: StateSizes
    after: StateSizes


def compact_state(store: StateStore) -> CompactionResult:
    """Rewrite a state without its expired rows, commit it, and collect garbage. Closes the store.

    Raises LockHeldError while a runner is active, and StartError or StateError if the state cannot be compacted.
    """
    with closing(store):
        before = measure_state_sizes(store)
        latest = store.open()
        assert latest is not None, "the state has just been measured"
        if latest.staged and store.published_epoch() < latest.epoch:
            raise StateError(
                f"{latest.pipeline}: epoch {latest.epoch} is committed but not yet published, and must be published before another commit; "
                "start the pipeline once, then compact the state",
                Topic.EPOCH_UNPUBLISHED,
            )
        steps = [_stage_operator(latest, number) for number in range(len(latest.stages))]
        for number, step in enumerate(steps):
            store.prepare(step, number)
        clock = time.time_ns() // 1000
        stages = (
            _compact_stage(step, store, state, latest.epoch + 1, number)
            for number, (step, state) in enumerate(zip(steps, latest.stages, strict=True))
        )
        store.commit(latest.successor(committed_us=clock, stages=tuple(stages)))
        store.collect_garbage()
        if isinstance(store, PostgresStore):
            _vacuum(store, len(steps))
        return CompactionResult(before, measure_state_sizes(store))


def _stage_operator(commit: Commit, number: int) -> Operator:
    step = restore_operator(commit, number)
    if not matches_description(step, commit.stages[number]):
        raise StateError(
            f"{commit.pipeline}: the state cannot be compacted yet: epoch {commit.epoch} was rewritten for another "
            "value of emit, which the state does not describe; start the pipeline once, then compact the state",
            Topic.STATE_OF_OTHER_CONFIG,
        )
    return step


def _compact_stage(step: Operator, store: StateStore, state: StageState, epoch: int, number: int) -> StageState:
    """Stage the state of a stage without its expired rows, in the same number of shards. Return the stage to commit."""
    compacted = state_migration.read_stage_state(step, store, state, epoch, number).write_shards(store, state.shards)
    # compaction does not emit the windows that wait for emission
    return compacted.model_copy(update={"waiting": state.waiting})


def _vacuum(store: PostgresStore, stages: int) -> None:
    by_stage = [store.tables.for_stage(n) for n in range(stages)]
    names = [name for t in by_stage for name in (t.state, t.staged)] + [*store.tables.shared_tables]
    try:
        with closing(client.open_connection(store.url, "state store")) as db:
            for name in names:
                db.execute(f"VACUUM (ANALYZE) {name}")
    except psycopg.Error as error:
        raise StateError(
            f"the state was compacted, but its tables {store.location} could not be vacuumed "
            f"({client.error_reason(error)}); run VACUUM (ANALYZE) on them"
        ) from None
