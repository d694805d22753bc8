"""Enforce `max_groups_per_window`, counted over all shards or divided among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slackwater.engine import next_commit
from slackwater.engine.engine_interface import Engine
from slackwater.operators.base import Operator, Question, ShardTask
from slackwater.state.commit import StageState


def divide_group_limit(bound: int, shards: int, shard: int) -> int:
    """Return one shard's share of a limit. Shares differ by at most one and add up to the limit."""
    return bound // shards + (1 if shard < bound % shards else 0)


def check_group_limit(
    operator: Operator, engine: Engine, before: StageState, after: StageState, tasks: Sequence[ShardTask]
) -> None:
    """Raise CapExceededError if the state has more groups than allowed; see `Operator.check_group_limit`."""

    def recount(question: Question) -> Mapping[int, int]:
        return engine.count([replace(t, state=t.state.with_metas(after.segments[t.shard])) for t in tasks], question)

    operator.check_group_limit(next_commit.read_stage_counts(after), before.watermark_us, recount)
