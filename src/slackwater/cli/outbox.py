"""`outbox`: shows, publishes or skips an epoch that is committed but not published."""

from __future__ import annotations

from pathlib import Path

from slackwater.cli import progress as views
from slackwater.cli.dlq import escape_control_characters
from slackwater.config import toml
from slackwater.core.humanize import format_iso, plural


def show_pending_epoch(file: Path, limit: int) -> None:
    """Print the pending epoch and some of its rows. `limit`: the maximum number of rows per target."""
    from slackwater.connectors.kafka.rows import json_objects
    from slackwater.runner import skip_publish

    pipeline = toml.load(file)
    pending = skip_publish.read_pending_output(pipeline)
    if pending is None:
        print(f"{pipeline.name}: nothing is pending: every committed epoch is published")
        return
    print(
        f"{pipeline.name}: epoch {pending.epoch} was committed at {format_iso(pending.committed_us)} but is not "
        f"published: {plural(pending.total, 'row')}, {plural(pending.letters, 'dead letter')}"
    )
    for names, rows in pending.rows.items():
        if not pending.has_one_target:
            print(f"for {' and '.join(map(escape_control_characters, names))}, {plural(rows.height, 'row')}:")
        for row in json_objects(rows.head(limit)):
            print(f"  {escape_control_characters(row.decode(errors='replace'))}")
        if rows.height > limit:
            print(f"  and {plural(rows.height - limit, 'row')} more; --limit shows more of them")
    print(f"try again:    slackwater outbox retry {file} {pending.epoch}")
    print(f"or skip it:   slackwater outbox skip {file} {pending.epoch}")


def retry_pending_epoch(file: Path, epoch: int) -> None:
    """Publish a pending epoch as a start does, without reading any input."""
    from slackwater.runner.skip_publish import publish_pending

    pipeline = toml.load(file)
    view = views.choose_view(0)
    try:
        publish_pending(pipeline, epoch, on_notice=view.notice)
    finally:
        view.close()
    print(f"{pipeline.name}: epoch {epoch} is published")


def skip_pending_epoch(file: Path, epoch: int, to: Path | None) -> None:
    """Store the rows of a pending epoch elsewhere, so that the next start continues after it.

    `to`: a directory for Parquet files; None means the dead letters.
    """
    from slackwater.runner.skip_publish import skip_publish

    pipeline = toml.load(file)
    place = skip_publish(pipeline, epoch, to)
    print(
        f"{pipeline.name}: epoch {epoch} was skipped; its rows are now in {place}, and the next start continues "
        "after it"
    )
