"""Arguments that several commands take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

MOST_ROWS = 1_000_000_000  # that an option may ask for
MOST_EPOCHS = 10**18 - 1  # the highest epoch of a state

AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A name that clients may call this server by, beside localhost and numbers.",
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline as TOML.")]


def parse_amount(text: str | float) -> float:
    """A number from 0 to MOST_ROWS, as an option takes it. Raises BadParameter, which names the option, for any other text."""
    try:
        value = float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= MOST_ROWS:  # nan is not, either
        shown = str(text)[:40]
        raise typer.BadParameter(f"found {shown}, expected a number from 0 to {MOST_ROWS:,}")
    return value
