"""Every start continues correctly or is refused with the cause, as `plan` predicts. See `restartable_pipeline.py`."""

from __future__ import annotations

import os

import pytest
from tests.laws.generators.restart_sequences import check_restart_sequence_seed

EXAMPLES = int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "12"))


@pytest.mark.semantics("starting-over")
@pytest.mark.parametrize("seed", range(1, EXAMPLES + 1))
def test_start_on_altered_state_or_target_is_correct_or_refused(seed: int) -> None:
    """If a state or target was copied, renamed or emptied, a start gives exactly the expected rows or is refused with
    the cause.
    """
    starts, *_ = check_restart_sequence_seed(seed)
    assert starts > 0
