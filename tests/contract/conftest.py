"""Share the early-statistics fixture with the contract tests, which also run stores against the laws."""

from __future__ import annotations

from tests.support.early_statistics import early_statistics as early_statistics
