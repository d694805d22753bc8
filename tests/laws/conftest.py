"""Hypothesis profile of the laws: the number of examples, fixed examples in CI, and the `early_statistics` fixture."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from tests.support.early_statistics import early_statistics as early_statistics

settings.register_profile(
    "laws",
    max_examples=int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize="CI" in os.environ,
)
settings.load_profile("laws")
