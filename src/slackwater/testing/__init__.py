"""Test support: pipelines in one process with a virtual clock, TOML test files, and local Kafka and Postgres servers.

May import: config, connectors, core, dead_letters, engine, errors, logging, operators, pyspark, runner, spark,
state, watermark, windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackwater.testing.local_pipeline import LocalPipeline, LocalResult


def __getattr__(name: str) -> Any:
    """Import a class on first use, because its module is slow to import."""
    if name in ("LocalPipeline", "LocalResult"):
        from slackwater.testing import local_pipeline

        return getattr(local_pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["LocalPipeline", "LocalResult"]
