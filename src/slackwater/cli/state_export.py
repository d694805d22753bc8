"""`state export`: writes the open and retained windows of one commit to a file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import polars as pl

from slackwater.core.humanize import mismatch, plural
from slackwater.errors import StartError
from slackwater.query.locate_state import locate_store
from slackwater.query.state_view import StateView, to_arrow
from slackwater.targets.files import json_columns, text_columns


def export_state(
    where: str, out: str, condition: str | None, pipeline: str | None, schema: str, epoch: int | None
) -> None:
    """Write windows of a state to a file atomically, and print what was written. Raises StartError or StateError."""
    path = Path(out)
    if path.suffix not in (".parquet", ".csv", ".json", ".jsonl"):
        raise StartError(f"{out}: " + mismatch(f'the suffix "{path.suffix}"', ".parquet, .csv, .json or .jsonl"))
    if not path.parent.is_dir():
        raise StartError(f"{out}: the directory {path.parent} does not exist; create it")
    store = locate_store(where, pipeline, schema)
    with closing(store), StateView(store) as latest, latest if epoch is None else latest.as_of(epoch) as view:
        commit, windows = view.manifest(), view.scan(where=condition)
    aside = path.with_name(f".{path.name}.part")
    try:
        _write(windows, aside, path.suffix)
        aside.replace(path)
    except OSError as error:
        raise StartError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        aside.unlink(missing_ok=True)
    # the last column has the epoch of the windows, since a runner may have advanced after `manifest` was read
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
