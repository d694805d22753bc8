"""The commands and their arguments. The modules that implement a command are imported only when it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackwater.core.humanize import mismatch

if TYPE_CHECKING:
    from slackwater.state.protocol import StateStore

MOST_ROWS = 1_000_000_000  # the largest number that an option accepts
MOST_EPOCHS = 10**18 - 1  # the highest epoch of a state

AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A host name that clients may use, in addition to localhost and IP addresses; may be repeated.",
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file of the pipeline.")]


def parse_amount(text: str | float) -> float:
    """Parse a number from 0 to MOST_ROWS. Raises typer.BadParameter for any other text."""
    try:
        value = float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= MOST_ROWS:  # also rejects NaN
        excerpt = str(text)[:40]
        raise typer.BadParameter(mismatch(excerpt, f"a number from 0 to {MOST_ROWS:,}"))
    return value


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
        from slackwater.query.locate_state import locate_store

        return locate_store(self.where, self.pipeline, self.schema)
