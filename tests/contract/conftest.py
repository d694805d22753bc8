"""Share the early-statistics fixture with the contract tests, which also run stores against the laws."""

from __future__ import annotations

from tests.support.statistics_before_read import (
    provide_statistics_before_read_in_some_epochs as provide_statistics_before_read_in_some_epochs,
)
