"""For tests, ours and those of users: a pipeline in one process with a virtual clock, an oracle, real services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackwater.testing.pipeline import LocalPipeline, LocalResult


def __getattr__(name: str) -> Any:
    """What costs time to import is imported when it is asked for."""
    if name in ("LocalPipeline", "LocalResult"):
        from slackwater.testing import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["LocalPipeline", "LocalResult"]
