"""Arguments that several commands take."""

from __future__ import annotations

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
