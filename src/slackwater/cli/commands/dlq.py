"""Commands that count, print and replay dead letters."""

from __future__ import annotations

from typing import Annotated

import typer

from slackwater.cli.commands import MOST_ROWS, File

group = typer.Typer(help="Show the dead letters of a config, and apply them.", no_args_is_help=True)


@group.command("list")
def dlq_list(file: File) -> None:
    """Count the dead letters by reason and source."""
    from slackwater.cli.dlq import list_dead_letters

    list_dead_letters(file)


@group.command("show")
def dlq_show(
    file: File,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MOST_ROWS, help="The number of dead letters to print.")
    ] = 10,
    reason: Annotated[str | None, typer.Option(help="Select only dead letters with this reason, such as late.")] = None,
    source: Annotated[str | None, typer.Option(help="Select only dead letters of this source.")] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,…", help="Select only late rows of this key; a name without a value stands for NULL."
        ),
    ] = None,
) -> None:
    """Print the newest dead letters with their content."""
    from slackwater.cli.dlq import show_dead_letters

    show_dead_letters(file, limit, reason, source, key or [])


@group.command("replay")
def dlq_replay(
    file: File,
    reason: Annotated[str | None, typer.Option(help="Select only dead letters with this reason, such as late.")] = None,
    epoch: Annotated[
        str | None, typer.Option(metavar="A..B", help="Select only dead letters of these epochs: A..B, A.., ..B or N.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, max=MOST_ROWS, help="Apply at most this many, those with the fewest tries first."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would happen.")] = False,
) -> None:
    """Replay dead letters, each at most once: late rows correct their windows, and bad rows are read again."""
    from slackwater.cli.dlq import replay_file

    replay_file(file, reason, epoch, limit, dry_run)
