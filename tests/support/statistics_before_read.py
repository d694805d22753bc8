"""Run laws with early statistics in some epochs, as from file footers. The results must not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from slackwater.connectors.source import Batch
from slackwater.testing.local_engine import LocalEngine


@pytest.fixture(autouse=True)
def provide_statistics_before_read_in_some_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics_before_read = LocalEngine.statistics_before_read

    def some(engine: LocalEngine, batch: Batch, clock_us: int) -> Mapping[str, Any]:
        rows = sum(len(frame) for frame in batch.payload.values())
        return statistics_before_read(replace(engine, early_statistics=rows % 2 == 0), batch, clock_us)

    monkeypatch.setattr(LocalEngine, "statistics_before_read", some)
