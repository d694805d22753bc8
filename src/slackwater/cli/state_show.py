"""The `state` commands that list states, show one state, and print or export its windows."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from slackwater.cli.output import align_rows
from slackwater.cli.state_location import StateLocation
from slackwater.connectors.files.target import json_columns, text_columns
from slackwater.core.humanize import format_age, format_iso, format_ms, format_size, mismatch, plural
from slackwater.core.row_format import format_value, json_lines
from slackwater.errors import SlackwaterError, StartError, Topic
from slackwater.query.state_locator import list_pipelines, locate_store
from slackwater.query.state_view import StateView, to_arrow
from slackwater.state.commit import Commit
from slackwater.state.protocol import StateStore
from slackwater.watermark import NO_WATERMARK


def list_states(where: str, schema: str, as_json: bool) -> None:
    """Print each pipeline in a state directory or database, with its epoch, watermark and size.

    Args:
        where: A state directory, or the URL of a database or object store.
        schema: The schema of the tables in a database.
        as_json: Whether to print one JSON object per pipeline instead of a table.

    Raises StartError if no pipeline keeps its state there.
    """
    names = list_pipelines(where, schema)
    if not names:
        raise StartError(f"{where}: no pipeline has a state here; check the location", Topic.NO_STATE)
    summaries = [_summary(locate_store(where, name, schema), name) for name in names]
    if as_json:
        print("\n".join(json.dumps(state, ensure_ascii=False) for state in summaries))
        return
    rows = [["pipeline", "epoch", "committed", "watermark", "open", "rows", "size", "runner"]]
    for state in summaries:
        if "error" in state:
            rows.append([state["pipeline"], state["error"]])
            continue
        rows.append(
            [
                state["pipeline"],
                str(state["epoch"]),
                state["committed"],
                state["watermark"] or "none yet",
                f"{state['open']:,}",
                f"{state['rows']:,}",
                format_size(state["bytes"]),
                state["runner"] or "-",
            ]
        )
    print("\n".join(align_rows([r + [""] * (8 - len(r)) for r in rows])))


def _summary(store: StateStore, name: str) -> dict[str, Any]:
    try:
        with closing(store), store.peek() as snapshot:
            if snapshot is None:
                return {"pipeline": name, "error": "no commit yet"}
            commit = snapshot.commit
            return {
                "pipeline": name,
                "epoch": commit.epoch,
                "committed": format_iso(commit.committed_us),
                "watermark": _time(commit.watermark_us),
                "open": _count_open(commit),
                "rows": sum(s.rows for s in commit.metas),
                "bytes": commit.state_bytes,
                "runner": store.runner(),
            }
    except SlackwaterError as error:
        return {"pipeline": name, "error": str(error)}


def _count_open(commit: Commit) -> int:
    """Return the number of open sessions, or of (key, pane) pairs, in the last stage."""
    last = commit.stages[-1]
    return sum(last.windows) or sum(sum(groups) for groups in last.panes.values())


def _unpublished_text(manifest: Commit, missing: list[str]) -> str:
    who = f", {' and '.join(missing)} pending" if len(missing) < len(manifest.recipients) else ""
    return f"not yet{who}; the next start publishes it"


def show_state(location: StateLocation, epoch: int | None, as_json: bool) -> None:
    """Print one state: its stages, its watermarks, and the offsets from which its sources continue.

    Args:
        location: The location of the state.
        epoch: The commit to read; None for the latest.
        as_json: Whether to print one JSON object instead of tables.

    Raises StartError if there is no commit.
    """
    store = location.open_store()
    with closing(store), store.peek(epoch) as snapshot:
        if snapshot is None:
            raise StartError(
                f"{location.where}: there is no state yet; start the pipeline to create it: slackwater run",
                Topic.NO_STATE,
            )
        commit, published, runner, kept_epochs = snapshot.commit, snapshot.published, store.runner(), store.epochs()
        missing = snapshot.missing
    if as_json:
        hidden: Any = {"output": True, "letters": True, "stages": {"__all__": {"segments"}}}
        fields = commit.model_dump(mode="json", exclude=hidden) | {
            "published": published,
            "runner": runner,
            "kept": kept_epochs,
        }
        print(json.dumps(fields, ensure_ascii=False))
        return
    now = time.time_ns() // 1000
    lines = [
        ["pipeline", commit.pipeline],
        [
            "epoch",
            f"{commit.epoch}, committed {format_iso(commit.committed_us)}, {format_age(now - commit.committed_us)} ago",
        ],
        ["published", "yes" if not commit.staged or published >= commit.epoch else _unpublished_text(commit, missing)],
        ["runner", runner or "none is running"],
        ["kept epochs", f"{kept_epochs[0]} to {kept_epochs[-1]}" if kept_epochs[1:] else str(commit.epoch)],
    ]
    for number, stage in enumerate(commit.stages):
        name = f"stage {number + 1} " if commit.stages[1:] else ""
        lines += [
            [
                f"{name}step",
                "; ".join(
                    _setting_text(k, v)
                    for k, v in stage.fingerprint.items()
                    if v not in (None, {}, []) and (k, v) != ("offset_ms", 0)
                ),
            ],
            [f"{name}watermark", _time(stage.watermark_us) or "none yet"],
            [
                f"{name}state",
                f"{plural(sum(s.rows for s in stage.metas), 'row')} in "
                f"{plural(commit.shards, 'shard')}, {format_size(sum(s.bytes for s in stage.metas))}",
            ],
        ]
    print("\n".join(align_rows(lines)))
    print()
    sources = [["source", "rows", "newest event", "idle", "continues at"]]
    for name, s in commit.sources.items():
        clock = commit.clocks[name]
        newest = "none yet" if clock.max_event_us is None else format_iso(clock.max_event_us)
        offsets = "Spark's checkpoint" if s.offsets is None else _brief(s.offsets.to_json())
        sources.append([name, f"{clock.rows:,}", newest, "yes" if clock.idle else "no", offsets])
    print("\n".join(align_rows(sources)))


def _setting_text(key: str, value: Any) -> str:
    """Format a setting of a stage with its name. Milliseconds are shown as a duration with a unit."""
    if key.endswith("_ms") and isinstance(value, int):
        return f"{key.removesuffix('_ms')} {format_ms(value)}"
    return f"{key.removesuffix('_ms')} {_value_text(value)}"


def _value_text(value: Any) -> str:
    """Format the value of a setting of a stage; lists and mappings are joined with commas."""
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_value_text(v)}" for k, v in value.items())
    return ", ".join(map(_value_text, value)) if isinstance(value, list | tuple) else str(value)


def _brief(offsets: Any, most: int = 160) -> str:
    text = json.dumps(offsets, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}…"


def print_key_windows(location: StateLocation, key: Sequence[str], epoch: int | None, as_json: bool) -> None:
    """Print the open and retained windows of a key.

    Args:
        location: The location of the state.
        key: The values of the key columns, each as `name=value` or, for NULL, `name`.
        epoch: The commit to read; None for the latest.
        as_json: Whether to print one JSON object per window instead of a table.
    """
    view = _view(location, epoch)
    _print(view.fetch(view.key_of(key)), as_json)


def print_sessions(
    location: StateLocation,
    key: Sequence[str],
    earliest_end: str | None,
    latest_start: str | None,
    epoch: int | None,
    as_json: bool,
) -> None:
    """Print the sessions of a key within a time range.

    Args:
        location: The location of the state.
        key: The values of the key columns, each as `name=value` or, for NULL, `name`.
        earliest_end: Select sessions whose last event is at or after this time (ISO 8601, UTC); None for all.
        latest_start: Select sessions that start at or before this time (ISO 8601, UTC); None for all.
        epoch: The commit to read; None for the latest.
        as_json: Whether to print one JSON object per session instead of a table.
    """
    view = _view(location, epoch)
    _print(view.find_sessions(view.key_of(key), earliest_end, latest_start), as_json)


def _view(location: StateLocation, epoch: int | None) -> StateView:
    view = StateView(location.open_store())
    return view if epoch is None else view.as_of(epoch)


def _print(frame: pl.DataFrame, as_json: bool) -> None:
    if as_json:
        print("".join(f"{line}\n" for line in json_lines(frame)), end="")
        return
    if frame.is_empty():
        print("no open or retained window")
        return
    texts = [[format_value(v) for v in row] for row in frame.iter_rows()]
    print("\n".join(align_rows([frame.columns, *texts])))


def _time(us: int) -> str | None:
    return None if us <= NO_WATERMARK else format_iso(us)


def export_state(location: StateLocation, out: str, condition: str | None, epoch: int | None) -> None:
    """Write the open and retained windows of a state to a file atomically, and print their number.

    Args:
        location: The location of the state.
        out: The file; its suffix determines the format.
        condition: A SQL condition that selects windows; None for all windows.
        epoch: The commit to read; None for the latest.

    Raises StartError if the file cannot be written or the condition is invalid, and StateError if the state is damaged.
    """
    path = Path(out)
    if path.suffix not in (".parquet", ".csv", ".json", ".jsonl"):
        raise StartError(
            f"{out}: " + mismatch(f'the suffix "{path.suffix}"', ".parquet, .csv, .json or .jsonl"),
            Topic.FILE_NOT_WRITABLE,
        )
    if not path.parent.is_dir():
        raise StartError(f"{out}: the directory {path.parent} does not exist; create it", Topic.FILE_NOT_WRITABLE)
    store = location.open_store()
    with closing(store), StateView(store) as latest, latest if epoch is None else latest.as_of(epoch) as view:
        commit, windows = view.manifest(), view.scan(where=condition)
    aside = path.with_name(f".{path.name}.part")
    try:
        _write(windows, aside, path.suffix)
        aside.replace(path)
    except OSError as error:
        raise StartError(
            f"{out}: cannot be written ({error.strerror}); choose another path", Topic.FILE_NOT_WRITABLE
        ) from None
    finally:
        aside.unlink(missing_ok=True)
    # the last column is the epoch of the rows: a runner may have committed again after `manifest` was read
    exported_epoch = int(windows[windows.columns[-1]][0]) if windows.height else commit.epoch
    print(f"{plural(windows.height, 'window')} of {commit.pipeline} as of epoch {exported_epoch}, in {out}")


def _write(frame: pl.DataFrame, path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(to_arrow(frame), path)
    elif suffix == ".csv":
        text_columns(json_columns(frame)).write_csv(path)
    else:
        text_columns(frame).write_ndjson(path)
