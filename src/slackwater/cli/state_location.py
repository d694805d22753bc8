"""The location of a state, as the commands of `state` and `serve` specify it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.state.protocol import StateStore


@dataclass(frozen=True)
class StateLocation:
    """The location of a pipeline's state.

    Args:
        where: The pipeline's TOML file, a state directory, or the URL of a database or object store.
        pipeline: The name of the pipeline; None if `where` contains only one.
        schema: The schema of the tables in a database.
    """

    where: str
    pipeline: str | None = None
    schema: str = "public"

    def open_store(self) -> StateStore:
        """Return the store of the state. Raises StartError or ConfigError if the state cannot be located."""
        from slackwater.query.state_locator import locate_store

        return locate_store(self.where, self.pipeline, self.schema)
