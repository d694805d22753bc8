"""`max_groups_per_window`: counted exactly over all shards, or divided over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slackwater.core.time import iso
from slackwater.core.words import plural
from slackwater.engine.protocol import Engine
from slackwater.errors import CapExceededError
from slackwater.joins.logic import JoinLogic
from slackwater.operators.base import Step
from slackwater.operators.task import ShardTask
from slackwater.state.protocol import Manifest
from slackwater.windows import panes


def share(bound: int, shards: int, shard: int) -> int:
    """A shard's part of a bound: the parts differ by at most one and add up to it."""
    return bound // shards + (1 if shard < bound % shards else 0)


def cap(logic: Step) -> int | None:
    """The bound beyond which new groups are dropped; None where they are not."""
    if isinstance(logic, JoinLogic) or logic.window.on_state_cap != "drop_new_groups":
        return None
    return logic.window.max_groups_per_window


def check(logic: Step, engine: Engine, before: Manifest, after: Manifest, tasks: Sequence[ShardTask]) -> None:
    """Raise CapExceededError if a window (or, for sessions, the state) holds more groups than allowed.

    For hopping windows the sum over a window's panes is an upper bound; only where it exceeds the limit are the groups
    counted in the state.
    """
    if isinstance(logic, JoinLogic):  # it is held within its bound row by row
        return
    bound = logic.window.max_groups_per_window
    if bound is None or logic.window.on_state_cap != "fail":
        return
    if logic.is_session:
        if sum(after.groups) > bound:
            raise CapExceededError(
                f"{logic.pipeline}: {plural(sum(after.groups), 'key has open sessions', 'keys have open sessions')}, max_groups_per_window is {bound}; raise it, "
                'or set on_state_cap = "drop_new_groups"; nothing of this epoch was committed'
            )
        return
    totals = panes.window_totals(logic, {p: sum(g) for p, g in after.panes.items()}, before.watermark_us)
    suspects = sorted(w for w, groups in totals.items() if groups > bound)
    if suspects and logic.hop_us != logic.duration_us:
        counting = [replace(t, state=t.state.at(after.segments[t.shard])) for t in tasks]
        exact = engine.count_groups(counting, suspects)
        totals = {w: exact.get(w, 0) for w in suspects}
        suspects = [w for w in suspects if totals[w] > bound]
    if suspects:
        window = suspects[0]
        raise CapExceededError(
            f"{logic.pipeline}: window {iso(window)} to {iso(window + logic.duration_us)} holds {totals[window]} groups, "
            f'max_groups_per_window is {bound}; raise it, or set on_state_cap = "drop_new_groups"; nothing of this epoch was committed'
        )
