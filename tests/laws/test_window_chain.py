"""Windows over the results of windows: one commit, no late row between stages, and the batch result of each window."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.window_chain_runs import check_window_chain_run, draw_window_chain
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.config.step_base import MOST_STAGES
from slackwater.errors import ConfigError

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "20"))


@pytest.mark.semantics("stages")
@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_chained_windows_give_the_batch_result_of_each_window(first: int) -> None:
    """With crashes and changing shard counts, a chain of three windows gives the batch result of each window in turn."""
    seed_runner.hide_warnings()
    for seed in range(first, first + 10):
        try:
            check_window_chain_run(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"emit": "updates"}, '"updates" is not supported in a stage that another stage reads'),
        ({"late_data": "standalone"}, '"standalone" is not supported in a stage that another stage reads'),
        (
            {"late_data": "reopen", "allowed_lateness_ms": 5},
            '"reopen" is not supported in a stage that another stage reads',
        ),
        ({"group_by": ["_event_ts"]}, 'a result column is named "_event_ts"'),
    ],
)
def test_only_the_last_stage_may_revise_results(settings: dict[str, Any], line: str) -> None:
    window = draw_window_chain(random.Random(1)).stages[-1].window
    assert window is not None
    plain = window.model_copy(update={"emit": "on_close", "late_data": "drop", "allowed_lateness_ms": None})
    first = plain.model_copy(update=settings)
    with pytest.raises(ConfigError, match=line):
        sw.pipeline(
            name="law",
            sources=[sw.Source(name="rows", dataframe=object())],
            stages=[sw.Stage(name="a", window=first), sw.Stage(name="b", window=plain)],
            connections={"tables": sw.DeltaConnection()},
            target=sw.Target(connection="tables", path="out", mode="merge"),
        )


def test_number_of_stages_is_limited() -> None:
    window = draw_window_chain(random.Random(1)).stages[0].window
    with pytest.raises(ConfigError, match=f"stages: found {MOST_STAGES + 1} stages, expected at most {MOST_STAGES}"):
        sw.pipeline(
            name="law",
            sources=[sw.Source(name="rows", dataframe=object())],
            stages=[sw.Stage(name=f"s{n}", window=window) for n in range(MOST_STAGES + 1)],
            connections={"lake": sw.FilesConnection()},
            target=sw.Target(connection="lake", path="out"),
        )
