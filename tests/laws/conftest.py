"""How many examples hypothesis draws for a law, and that it draws the same ones where CI is set; and in which epochs rows are foreseen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from slackwater.sources.base import Batch
from slackwater.testing.local import LocalEngine

settings.register_profile(
    "laws",
    max_examples=int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize="CI" in os.environ,
)
settings.load_profile("laws")


@pytest.fixture(autouse=True)
def foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every other epoch or so it is known before its rows are read how new they are, as footers of files tell: results are the same."""
    ahead = LocalEngine.ahead

    def some(engine: LocalEngine, batch: Batch, clock_us: int) -> Mapping[str, Any]:
        rows = sum(len(frame) for frame in batch.payload.values())
        return ahead(replace(engine, foresees=rows % 2 == 0), batch, clock_us)

    monkeypatch.setattr(LocalEngine, "ahead", some)
