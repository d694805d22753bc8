"""The commands and their arguments. The modules that implement a command are imported only when it runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from slackwater.core.humanize import mismatch

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
File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's TOML file.")]


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
