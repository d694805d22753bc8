"""Every start continues what it should, or refuses and names the cause; `plan` says the same before. See `restartable_pipeline.py`."""

from __future__ import annotations

import os

import pytest
from tests.laws.generators.restarts import check_seed

EXAMPLES = int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "12"))


@pytest.mark.semantics("starting-over")
@pytest.mark.parametrize("seed", range(1, EXAMPLES + 1))
def test_a_start_continues_its_state_and_target_or_refuses(seed: int) -> None:
    """If a state or target was copied, renamed or emptied, a start gives exactly the expected rows or is refused with
    the cause.
    """
    starts, *_ = check_seed(seed)
    assert starts > 0
