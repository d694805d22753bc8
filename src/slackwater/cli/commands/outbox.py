"""Commands for an epoch that is committed but not published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.commands import MOST_EPOCHS, MOST_ROWS, File

group = typer.Typer(help="Show an epoch that is committed but not published; retry or skip it.", no_args_is_help=True)
Epoch = Annotated[
    int, typer.Argument(metavar="EPOCH", min=0, max=MOST_EPOCHS, help="The epoch that outbox show prints.")
]


@group.command("show")
def outbox_show(
    file: File,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MOST_ROWS, help="The number of rows to print.")
    ] = 10,
) -> None:
    """Show the epoch that is waiting to be published, with its rows. Takes no lock."""
    from slackwater.cli.outbox import show_pending_epoch

    show_pending_epoch(file, limit)


@group.command("retry")
def outbox_retry(file: File, epoch: Epoch) -> None:
    """Publish the pending epoch as the next start would, without reading any input."""
    from slackwater.cli.outbox import retry_pending_epoch

    retry_pending_epoch(file, epoch)


@group.command("skip")
def outbox_skip(
    file: File,
    epoch: Epoch,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Keep its rows in Parquet files in this directory instead of the dead letters."
        ),
    ] = None,
) -> None:
    """Skip an epoch that its target rejects: its rows become dead letters, and the next start continues after it."""
    from slackwater.cli.outbox import skip_pending_epoch

    skip_pending_epoch(file, epoch, to)


@group.command("set-aside", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def outbox_set_aside() -> None:
    """The former name of `skip`. It only reports the new name."""
    from slackwater.errors import StartError, Topic

    raise StartError("outbox set-aside is now called outbox skip", Topic.VALUE)
