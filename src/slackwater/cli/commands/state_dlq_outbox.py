"""The command groups `state`, `dlq` and `outbox`, which are implemented in other modules.

The argument WHERE is the pipeline's TOML file, a state directory, or the URL of an object store or database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.commands import MOST_EPOCHS, MOST_ROWS, File
from slackwater.cli.state_location import StateLocation

state = typer.Typer(help="Inspect, check, copy and change states.", no_args_is_help=True)

Where = Annotated[
    str,
    typer.Argument(
        metavar="WHERE", help="The pipeline's TOML file, a state directory, or the URL of an object store or database."
    ),
]
Name = Annotated[str | None, typer.Option("--pipeline", help="The name of the pipeline, if WHERE contains several.")]
Schema = Annotated[str, typer.Option(help="The database schema that contains the tables.")]
GroupKey = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="K=V",
        help="The key, such as user_id=u1 or user_id=u1,country=DE; a name alone (country) stands for NULL.",
    ),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--at", min=-1, max=MOST_EPOCHS, metavar="EPOCH", help="Use the commit of this epoch instead of the latest."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with times in ISO 8601.")]


@state.command("ls")
def ls(where: Where, schema: Schema = "public", as_json: Json = False) -> None:
    """List the pipelines in a state directory, object store or database, each with its epoch, watermark and size."""
    from slackwater.cli.state_show import list_states

    list_states(where, schema, as_json)


@state.command("show")
def show(
    where: Where, pipeline: Name = None, schema: Schema = "public", epoch: Epoch = None, as_json: Json = False
) -> None:
    """Show one state: its stages, its watermarks, and the offsets from which its sources continue."""
    from slackwater.cli.state_show import show_state

    show_state(StateLocation(where, pipeline, schema), epoch, as_json)


@state.command("get")
def get(
    where: Where,
    key: GroupKey = None,
    pipeline: Name = None,
    schema: Schema = "public",
    epoch: Epoch = None,
    as_json: Json = False,
) -> None:
    """Print the open and retained windows of a key, with their current values."""
    from slackwater.cli.state_show import print_key_windows

    print_key_windows(StateLocation(where, pipeline, schema), key or [], epoch, as_json)


@state.command("find-sessions")
def find_sessions(
    where: Where,
    key: GroupKey = None,
    earliest_end: Annotated[
        str | None, typer.Option(metavar="TIME", help="Select sessions whose last event is at or after this time.")
    ] = None,
    latest_start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Select sessions that start at or before this time.")
    ] = None,
    pipeline: Name = None,
    schema: Schema = "public",
    epoch: Epoch = None,
    as_json: Json = False,
) -> None:
    """Print the sessions of a key within a time range (ISO 8601, UTC)."""
    from slackwater.cli.state_show import print_sessions

    location = StateLocation(where, pipeline, schema)
    print_sessions(location, key or [], earliest_end, latest_start, epoch, as_json)


@state.command("verify")
def verify(where: Where, pipeline: Name = None, schema: Schema = "public", as_json: Json = False) -> None:
    """Check that every commit, file and table of a state is sound. The exit code is 1 if anything is wrong.

    This works even while a runner is active.
    """
    from slackwater.cli.state_maintenance import print_verification

    raise typer.Exit(print_verification(StateLocation(where, pipeline, schema), as_json))


@state.command("sizes")
def sizes(
    where: Where,
    hot_keys: Annotated[
        int, typer.Option(min=0, max=MOST_ROWS, metavar="N", help="Also list the N keys with the most rows.")
    ] = 0,
    pipeline: Name = None,
    schema: Schema = "public",
    as_json: Json = False,
) -> None:
    """Show the size of a state by shard, and the size of the files that only older commits need."""
    from slackwater.cli.state_maintenance import show_sizes

    show_sizes(StateLocation(where, pipeline, schema), hot_keys, as_json)


@state.command("history")
def history(where: Where, pipeline: Name = None, schema: Schema = "public", as_json: Json = False) -> None:
    """List the kept commits, each with its row counts, number of open windows, and size."""
    from slackwater.cli.state_maintenance import show_history

    show_history(StateLocation(where, pipeline, schema), as_json)


@state.command("compact")
def compact(where: Where, pipeline: Name = None, schema: Schema = "public", as_json: Json = False) -> None:
    """Shrink a state: drop expired rows and merge the files of every shard, in a separate commit.

    No runner may be active.
    """
    from slackwater.cli.state_maintenance import print_compaction

    print_compaction(StateLocation(where, pipeline, schema), as_json)


Dry = Annotated[bool, typer.Option("--dry-run", help="Only report what would happen.")]


@state.command("migrate")
def migrate(where: Where, pipeline: Name = None, schema: Schema = "public", dry_run: Dry = False) -> None:
    """Migrate a state from an older format to the current one, in a separate commit. A run also does this at startup.

    No runner may be active, except with --dry-run.
    """
    from slackwater.cli.state_maintenance import migrate

    migrate(StateLocation(where, pipeline, schema), dry_run)


@state.command("fork")
def fork(
    where: Where,
    name: Annotated[
        str, typer.Argument(metavar="NEW_NAME", help="The name of the new pipeline, which continues from the copy.")
    ],
    pipeline: Name = None,
    schema: Schema = "public",
    epoch: Epoch = None,
) -> None:
    """Copy a state, so that a pipeline with another name can continue from it.

    This works even while a runner is active.
    """
    from slackwater.cli.state_maintenance import fork_state

    fork_state(StateLocation(where, pipeline, schema), name, epoch)


@state.command("reset")
def reset(
    where: Where,
    offsets: Annotated[
        list[str],
        typer.Option(
            metavar="OFFSETS",
            help="Where to continue: earliest, latest or a time, for all sources or for one (SOURCE=latest); or JSON with "
            'offsets by source, topic and partition, such as {"clicks": {"clicks": {"0": 42}}}. May be repeated.',
        ),
    ],
    pipeline: Name = None,
    schema: Schema = "public",
    dry_run: Dry = False,
) -> None:
    """Change the offsets from which sources continue, without changing the windows in the state.

    No runner may be active, except with --dry-run.
    """
    from slackwater.cli.state_maintenance import reset_state

    reset_state(StateLocation(where, pipeline, schema), offsets, dry_run)


@state.command("export")
def export(
    where: Where,
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The file to write: .parquet, .csv, .json or .jsonl (a row per line).")
    ],
    condition: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help="Select only windows that match a condition, such as \"n > 100 AND _status = 'open'\".",
        ),
    ] = None,
    pipeline: Name = None,
    schema: Schema = "public",
    epoch: Epoch = None,
) -> None:
    """Write the open and retained windows of one commit to a file."""
    from slackwater.cli.state_show import export_state

    export_state(StateLocation(where, pipeline, schema), out, condition, epoch)


# -- dlq -----------------------------------------------------------------------------------------------------------------


dlq = typer.Typer(help="Show and replay the dead letters of a pipeline.", no_args_is_help=True)


@dlq.command("list")
def dlq_list(file: File) -> None:
    """Count the dead letters by reason and source."""
    from slackwater.cli.dlq import list_dead_letters

    list_dead_letters(file)


@dlq.command("show")
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


@dlq.command("replay")
def dlq_replay(
    file: File,
    reason: Annotated[str | None, typer.Option(help="Select only dead letters with this reason, such as late.")] = None,
    epoch: Annotated[
        str | None, typer.Option(metavar="A..B", help="Select only dead letters of these epochs: A..B, A.., ..B or N.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=MOST_ROWS,
            help="The maximum number of dead letters to apply; those tried least often come first. By default, all.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would happen.")] = False,
) -> None:
    """Replay dead letters, each at most once: late rows correct their windows, and bad rows are read again.

    No runner may be active, even with --dry-run.
    """
    from slackwater.cli.dlq import replay_file

    replay_file(file, reason, epoch, limit, dry_run)


# -- outbox --------------------------------------------------------------------------------------------------------------


outbox = typer.Typer(help="Show, retry or skip an epoch that is committed but not published.", no_args_is_help=True)
PendingEpoch = Annotated[
    int,
    typer.Argument(metavar="EPOCH", min=0, max=MOST_EPOCHS, help="The number of the epoch, as printed by outbox show."),
]


@outbox.command("show")
def outbox_show(
    file: File,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MOST_ROWS, help="The number of rows to print per target.")
    ] = 10,
) -> None:
    """Show the epoch that is waiting to be published and its rows, without taking a lock."""
    from slackwater.cli.dlq import show_pending_epoch

    show_pending_epoch(file, limit)


@outbox.command("retry")
def outbox_retry(file: File, epoch: PendingEpoch) -> None:
    """Publish the pending epoch as the next start would, without reading any input.

    No runner may be active.
    """
    from slackwater.cli.dlq import retry_pending_epoch

    retry_pending_epoch(file, epoch)


@outbox.command("skip")
def outbox_skip(
    file: File,
    epoch: PendingEpoch,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Store the rows as Parquet files in this directory instead of as dead letters."
        ),
    ] = None,
) -> None:
    """Skip an epoch that its target rejects: its rows become dead letters, and the next start continues after it.

    No runner may be active.
    """
    from slackwater.cli.dlq import skip_pending_epoch

    skip_pending_epoch(file, epoch, to)


@outbox.command("set-aside", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def outbox_set_aside() -> None:
    """Raise an error that says that the command is now called `outbox skip`."""
    from slackwater.errors import StartError, Topic

    raise StartError('"outbox set-aside" is now called "outbox skip"; use the new name', Topic.VALUE)
