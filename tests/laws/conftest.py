"""Hypothesis profile of the laws: the number of examples, fixed examples in CI, and early statistics."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from tests.support.statistics_before_read import (
    provide_statistics_before_read_in_some_epochs as provide_statistics_before_read_in_some_epochs,
)

settings.register_profile(
    "laws",
    max_examples=int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize="CI" in os.environ,
)
settings.load_profile("laws")
