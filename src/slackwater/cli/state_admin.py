"""`state migrate`, `fork` and `reset`: change the format, the name or the source offsets of a state."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from slackwater.cli.format import align_rows
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import format_size, plural
from slackwater.errors import StartError
from slackwater.maintenance import reset_offsets
from slackwater.query.locate_state import locate_store
from slackwater.state import fork, migrations
from slackwater.state.commit import Commit
from slackwater.state.maintenance_commit import edit_state, missing_state_error, next_maintenance_commit
from slackwater.state.migrations import FORMAT, STEPS
from slackwater.state.protocol import StateStore


def migrate(where: str, pipeline: str | None, schema: str, dry_run: bool) -> None:
    """Migrate a state to the current format, or print the migrations with `dry_run`."""
    store = locate_store(where, pipeline, schema)
    with closing(store):
        stored = store.stored_record()
        if stored is None:
            raise missing_state_error()
        version, record = stored
        name, epoch = record["pipeline"], record["epoch"]
        if version == FORMAT:
            print(f"{name}: epoch {epoch} has format {version}, the current format; there is nothing to migrate")
            return
        print(f"{name}: epoch {epoch} has format {version}; this version writes format {FORMAT}")
        for number in migrations.migration_route(version, name):
            after = {**migrations.STEPS[number].change(record), "format": number + 1}
            print(f"  {number} -> {number + 1}  {STEPS[number].description}")
            print("\n".join(f"          {line}" for line in _change_lines(record, after)))
            record = after
    if dry_run:
        print("nothing was changed (--dry-run)")
        return
    store = locate_store(where, pipeline, schema)
    with edit_state(store) as commit:
        done = store.commit(next_maintenance_commit(commit, _now()))
    print(f"committed as epoch {done.epoch}, in format {done.format}; earlier versions of slackwater cannot read it")


def _change_lines(before: Any, after: Any, stage: str = "") -> list[str]:
    """Return lines with the fields that a migration changed, for each stage."""
    fields = [k for k in after if k not in ("format", "then")]
    changed = [k for k in fields if before.get(k) != after[k] and (before.get(k) or after[k])]
    lines = [f"{stage}{'changes' if before.get(k) else 'adds'} {k}: {_brief(after[k])}" for k in changed]
    lines = lines or [f"{stage}changes no field"]
    return lines + (_change_lines(before["then"], after["then"], "next stage: ") if after.get("then") else [])


def _brief(value: Any, most: int = 120) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}…"


def fork_state(where: str, name: str, pipeline: str | None, schema: str, epoch: int | None) -> None:
    """Copy a state under another name, and print what the copy contains."""
    store = locate_store(where, pipeline, schema)
    with closing(store):
        commit = fork.fork_store(store, name, epoch)
    rows = sum(s.rows for stage in commit.stages for shard in stage.segments for s in shard)
    print(f'"{name}" begins with epoch {commit.epoch}: {plural(rows, "state row")}, {format_size(commit.state_bytes)}')
    print(
        f'to continue from there, use the same config with name = "{name}" and another target; results up '
        f"to epoch {commit.epoch} are only in the target of the original"
    )
    for source in fork.checkpoint_sources(commit):
        print(
            f'warning: source "{source}" continues from Spark\'s checkpoint only, which is not copied: the fork can be '
            "inspected, but not run"
        )


def reset_state(where: str, offsets: Sequence[str], pipeline: str | None, schema: str, dry_run: bool) -> None:
    """Change the offsets of sources and print the changes."""
    config = toml.load(where) if Path(where).suffix == ".toml" and not Path(where).is_dir() else None
    store = locate_store(config or where, pipeline, schema)
    if dry_run:
        with closing(store), store.peek() as snapshot:
            if snapshot is None:
                raise missing_state_error()
            _print_moves(snapshot.commit, reset_offsets.plan_moves(snapshot.commit, offsets, config))
        print("nothing was changed (--dry-run)")
        return
    print(f"committed as epoch {_reset(store, offsets, config).epoch}")


def _reset(store: StateStore, offsets: Sequence[str], config: Pipeline | None) -> Commit:
    with edit_state(store) as commit:
        moves = reset_offsets.plan_moves(commit, offsets, config)
        _print_moves(commit, moves)
        if all(m.before == m.after for m in moves):
            raise StartError(f"{commit.pipeline}: the sources already continue there; nothing was committed")
        return store.commit(next_maintenance_commit(commit, _now(), sources=reset_offsets.apply_moves(commit, moves)))


def _print_moves(commit: Commit, moves: Sequence[reset_offsets.OffsetMove]) -> None:
    """Print the offsets before and after, with warnings about rows that will be read again or skipped."""
    print(f"{commit.pipeline}: epoch {commit.epoch}; its windows and clocks do not change")
    lines = [["source", "partition", "continues at", "will continue at", ""]]
    changes = [(move.source, change) for move in moves for change in move.after.changes(move.before)]
    lines += [[source, c.part, c.before, c.after, c.meaning] for source, c in changes]
    print("\n".join(align_rows(lines)))
    if any(c.rereads for _, c in changes):
        print(
            "warning: rows that are read again are late if their windows are closed, and counted twice in windows that are "
            "open or retained"
        )
    if any(c.skips_rows for _, c in changes):
        print("warning: skipped rows are lost: no window will contain them")


def _now() -> int:
    return time.time_ns() // 1000
