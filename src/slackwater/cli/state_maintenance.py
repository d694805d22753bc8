"""The `state` commands that check or change a state: verify, sizes, history, compact, migrate, fork and reset."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slackwater.cli.output import align_rows
from slackwater.cli.state_location import StateLocation
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import format_age, format_iso, format_size, plural
from slackwater.errors import StartError, Topic
from slackwater.maintenance import reset_offsets, verify_state
from slackwater.maintenance.compact import CompactionResult, compact_state
from slackwater.maintenance.history import list_commits
from slackwater.maintenance.state_sizes import StateSizes, WriteCounts, measure_state_sizes
from slackwater.maintenance.verify_rows import VerifyReport
from slackwater.state import fork, migrations
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore
from slackwater.state.migrations import FORMAT, STEPS
from slackwater.state.protocol import StateStore
from slackwater.state.store_access import lock_stopped_state, missing_state_error
from slackwater.watermark import NO_WATERMARK

# -- verify, sizes, history, compact -----------------------------------------------------------------------------------


MOST_SHARDS = 32  # maximum number of shards in a printed table


def print_verification(location: StateLocation, as_json: bool) -> int:
    """Verify a state, and print the problems. Return the exit code: 1 if problems exist, else 0."""
    with closing(location.open_store()) as store:
        report = verify_state(store)
    if as_json:
        print(_json(asdict(report)))
    else:
        print("\n".join([*map(str, report.problems), _verdict_line(report)]))
    return 1 if report.problems else 0


def _verdict_line(report: VerifyReport) -> str:
    kept_epochs = report.epochs
    epochs = (
        "no commit"
        if not kept_epochs
        else f"epoch {kept_epochs[-1]}"
        if not kept_epochs[1:]
        else f"epochs {kept_epochs[0]} to {kept_epochs[-1]}"
    )
    unit = "table" if report.store == "postgres" else "file"
    extent = f"{epochs}, {plural(report.files, unit)}, {plural(report.rows, 'row')}, {format_size(report.bytes)}, {report.seconds:.1f} s"
    unread = "; the rows were not checked, because the state does not describe its window" if report.unread else ""
    if not report.problems:
        return f"{report.pipeline}: sound ({extent}){unread}"
    sound = "no commit is sound" if report.sound is None else f"epoch {report.sound} is the last sound commit"
    return f"{report.pipeline}: {plural(len(report.problems), 'problem')}, {sound} ({extent}){unread}"


def show_sizes(location: StateLocation, hot: int, as_json: bool) -> None:
    with closing(location.open_store()) as store:
        measured = measure_state_sizes(store, hot)
    print(_json(asdict(measured)) if as_json else "\n".join(_size_lines(measured)))


def _hot_shards_text(measured: StateSizes, several: bool) -> str:
    """Describe the shards that slow down epochs, because they have many more rows than the other shards of their stage.

    `several`: whether the pipeline has several stages.
    """
    descriptions = []
    for s in measured.hot_shards[:3]:
        stage_rows = [x.rows for x in measured.shards if x.stage == s.stage]
        stage = f" of stage {s.stage + 1}" if several else ""
        descriptions.append(
            f"{s.shard}{stage} ({s.rows:,} rows, {s.rows * len(stage_rows) / sum(stage_rows):.1f} times the mean)"
        )
    more = f" and {len(measured.hot_shards) - 3} more" if measured.hot_shards[3:] else ""
    return f"{', '.join(descriptions)}{more}: more shards do not help if single keys have so many rows; see --hot-keys"


def _size_lines(measured: StateSizes) -> list[str]:
    several = any(s.stage for s in measured.shards)
    in_tables = bool(measured.tables)
    head = [*(["stage"] if several else []), "shard", *([] if in_tables else ["segments"]), "rows"]
    rows = [head if in_tables else [*head, "size"]]
    listed_shards = (
        measured.shards
        if len(measured.shards) <= MOST_SHARDS
        else sorted(measured.shards, key=lambda s: -s.rows)[:MOST_SHARDS]
    )
    for s in listed_shards:
        cells = [*([str(s.stage + 1)] if several else []), str(s.shard)]
        rows.append(
            [*cells, f"{s.rows:,}"]
            if s.bytes is None
            else [*cells, str(s.segments), f"{s.rows:,}", format_size(s.bytes)]
        )
    lines = [
        f"{measured.pipeline}, epoch {measured.epoch}: {format_size(measured.state_bytes)} of state",
        "",
        *align_rows(rows),
        "",
    ]
    if len(listed_shards) < len(measured.shards):
        rest = f"the {len(listed_shards)} largest of {len(measured.shards):,} shards; --json lists all of them"
        lines[-1:] = [rest, ""]
    if in_tables:
        tables = [["table", "rows", "size", "dead rows"]]
        tables += [[t.table, f"{t.rows:,}", format_size(t.bytes), f"{t.dead:,}"] for t in measured.tables]
        lines += [*align_rows(tables), ""]
    facts = [
        [
            "staged outputs",
            f"{_count_and_size(measured.outputs)}, not published yet: {_count_and_size(measured.waiting)}",
        ]
    ]
    if not in_tables:
        span = f"{measured.kept[0]} to {measured.kept[-1]}" if measured.kept[1:] else str(measured.epoch)
        facts.append(["kept epochs", f"{span}; only earlier epochs need {_count_and_size(measured.only_kept)}"])
        removed = "; the next run or compact removes it" if measured.garbage[0] else ""
        facts.append(["garbage", f"{_count_and_size(measured.garbage)}{removed}"])
    facts.append(["lists", _count_and_size(measured.lists)])
    if measured.hot_shards:
        facts.append(["hot shards", _hot_shards_text(measured, several)])
    if measured.requests is not None:
        facts.append(["requests", _requests_text(measured.requests)])
    lines += align_rows(facts)
    if measured.hot:
        keys = [["key", *(["side"] if any(k.side for k in measured.hot) else []), "rows", "events"]]
        for k in measured.hot:
            name = ", ".join(f"{c}={'NULL' if v is None else v}" for c, v in k.key.items()) or "(no key)"
            events = "-" if k.events is None else f"{k.events:,}"
            keys.append([name, *([k.side or "-"] if "side" in keys[0] else []), f"{k.rows:,}", events])
        lines += ["", *align_rows(keys)]
    return lines


def _requests_text(counts: WriteCounts) -> str:
    means = f"means of {plural(counts.epochs, 'kept epoch')}"
    rates = f"{counts.per_shard:.1f} per shard and {counts.per_commit:.1f} per commit ({means})"
    if counts.seconds is None:
        return rates
    return f"{rates}, a commit every {format_age(int(counts.seconds * 1e6))}"


def _count_and_size(pair: tuple[int, int]) -> str:
    return "none" if not pair[0] else f"{pair[0]:,} ({format_size(pair[1])})"


def show_history(location: StateLocation, as_json: bool) -> None:
    with closing(location.open_store()) as store:
        commits = list_commits(store)
        latest_only = not isinstance(store, FilesStore)
    if not commits:
        raise StartError(
            f"{location.where}: there is no state yet; start the pipeline to create it: slackwater run", Topic.NO_STATE
        )
    if as_json:
        for c in commits:
            print(_json(asdict(c) | {"committed": format_iso(c.committed_us), "watermark": _time(c.watermark_us)}))
        return
    rows = [["epoch", "committed", "watermark", "rows in", "late", "bad", "emitted", "open", "size"]]
    for c in commits:
        since = ["-" if n is None else f"{n:,}" for n in (c.rows_in, c.late, c.bad, c.emitted)]
        times = [format_iso(c.committed_us), _time(c.watermark_us) or "none yet"]
        rows.append([str(c.epoch), *times, *since, f"{c.open:,}", format_size(c.bytes)])
    print("\n".join(align_rows(rows)))
    if latest_only:
        print("A database keeps only the latest commit, so its rows cannot be compared with an earlier commit.")


def print_compaction(location: StateLocation, as_json: bool) -> None:
    done = compact_state(location.open_store())
    if as_json:
        print(_json({"before": asdict(done.before), "after": asdict(done.after)}))
        return
    print("\n".join(_compaction_lines(done)))


def _compaction_lines(done: CompactionResult) -> list[str]:
    rows = [["", "epoch", "segments", "rows", "state", "dead rows" if done.after.tables else "only kept epochs"]]
    for name, s in (("before", done.before), ("after", done.after)):
        segments = "-" if s.tables else str(sum(x.segments for x in s.shards))
        last = str(sum(t.dead for t in s.tables)) if s.tables else format_size(s.only_kept[1])
        rows.append(
            [name, str(s.epoch), segments, f"{sum(x.rows for x in s.shards):,}", format_size(s.state_bytes), last]
        )
    lines = list(align_rows(rows))
    if not done.after.tables:
        lines.append(
            "Files that only earlier commits need are removed as soon as later commits replace the earlier ones."
        )
    return lines


def _time(us: int) -> str | None:
    return None if us <= NO_WATERMARK else format_iso(us)


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False)


# -- migrate, fork, reset ----------------------------------------------------------------------------------------------


def migrate(location: StateLocation, dry_run: bool) -> None:
    """Migrate a state to the current format, and print the changes. With `dry_run`, only print the changes."""
    store = location.open_store()
    with closing(store):
        stored = store.read_commit_record()
        if stored is None:
            raise missing_state_error()
        version, record = stored
        name, epoch = record["pipeline"], record["epoch"]
        if version == FORMAT:
            print(f"{name}: epoch {epoch} already has the current format, {version}")
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
    store = location.open_store()
    with lock_stopped_state(store) as commit:
        done = store.commit(commit.successor(committed_us=_now()))
    print(f"committed as epoch {done.epoch}, in format {done.format}; earlier versions of slackwater cannot read it")


def _change_lines(before: Any, after: Any, stage: str = "") -> list[str]:
    """Return a line for each commit field that a migration changed, stage by stage. `stage`: a prefix for the lines."""
    fields = [k for k in after if k not in ("format", "then")]
    changed = [k for k in fields if before.get(k) != after[k] and (before.get(k) or after[k])]
    lines = [f"{stage}{'changes' if before.get(k) else 'adds'} {k}: {_brief(after[k])}" for k in changed]
    lines = lines or [f"{stage}changes no field"]
    return lines + (_change_lines(before["then"], after["then"], "next stage: ") if after.get("then") else [])


def _brief(value: Any, most: int = 120) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}…"


def fork_state(location: StateLocation, name: str, epoch: int | None) -> None:
    """Copy a state to another pipeline, and print the size of the copy and how to continue from it.

    Args:
        location: The location of the state.
        name: The name of the new pipeline.
        epoch: The commit to copy; None for the latest.
    """
    store = location.open_store()
    with closing(store):
        commit = fork.fork_store(store, name, epoch)
    rows = sum(s.rows for stage in commit.stages for shard in stage.segments for s in shard)
    print(f'"{name}" begins with epoch {commit.epoch}: {plural(rows, "state row")}, {format_size(commit.state_bytes)}')
    print(
        f'To continue from it, use the same config with name = "{name}" and another target. Results up '
        f"to epoch {commit.epoch} are only in the target of the original pipeline."
    )
    for source in fork.checkpoint_sources(commit):
        print(
            f'warning: source "{source}" continues from Spark\'s checkpoint, which is not copied; the fork can be '
            "inspected, but not run"
        )


def reset_state(location: StateLocation, offsets: Sequence[str], dry_run: bool) -> None:
    """Change the offsets from which sources continue, and print the old and the new offsets.

    Args:
        location: The location of the state.
        offsets: The new offsets, in the form that --offsets accepts.
        dry_run: Whether to print the changes without making them.

    Raises StartError if the offsets are invalid, or if the sources already continue from them.
    """
    path = Path(location.where)
    config = toml.load(path) if path.suffix == ".toml" and not path.is_dir() else None
    store = location.open_store()
    if dry_run:
        with closing(store), store.peek() as snapshot:
            if snapshot is None:
                raise missing_state_error()
            _print_moves(snapshot.commit, reset_offsets.plan_moves(snapshot.commit, offsets, config))
        print("nothing was changed (--dry-run)")
        return
    print(f"committed as epoch {_reset(store, offsets, config).epoch}")


def _reset(store: StateStore, offsets: Sequence[str], config: Pipeline | None) -> Commit:
    with lock_stopped_state(store) as commit:
        moves = reset_offsets.plan_moves(commit, offsets, config)
        _print_moves(commit, moves)
        if all(m.before == m.after for m in moves):
            raise StartError(
                f"{commit.pipeline}: the sources already continue from these offsets; nothing was committed",
                Topic.OFFSETS,
            )
        return store.commit(commit.successor(committed_us=_now(), sources=reset_offsets.apply_moves(commit, moves)))


def _print_moves(commit: Commit, moves: Sequence[reset_offsets.OffsetMove]) -> None:
    """Print the old and new offsets, and warn about rows that will be read again or skipped."""
    print(f"{commit.pipeline}: epoch {commit.epoch}; its windows and clocks do not change")
    lines = [["source", "partition", "continues at", "will continue at", ""]]
    changes = [(move.source, change) for move in moves for change in move.after.changes(move.before)]
    lines += [[source, c.part, c.before, c.after, c.meaning] for source, c in changes]
    print("\n".join(align_rows(lines)))
    if any(c.rereads for _, c in changes):
        print(
            "warning: rows that are read again are late if their windows are closed. They count twice in windows that are "
            "still open or retained."
        )
    if any(c.skips_rows for _, c in changes):
        print("warning: skipped rows are lost; no window will contain them")


def _now() -> int:
    return time.time_ns() // 1000
