"""The console: print each epoch's rows as a table. Delivery is at least once: printed rows cannot be removed."""

from __future__ import annotations

import sys

import polars as pl

from slackwater.connectors.files.target import json_columns
from slackwater.core.humanize import plural
from slackwater.core.schema import ANYTHING


class ConsoleTarget:
    guarantee = "at least once"
    upserts = False
    description = "the console"
    capacity = ANYTHING

    def open(self) -> None:
        return

    def close(self) -> None:
        return

    def publish(self, epoch: int, rows: pl.DataFrame, superseded: pl.DataFrame | None = None, commit: str = "") -> None:
        with pl.Config(
            tbl_rows=20, tbl_cols=-1, tbl_hide_dataframe_shape=True, fmt_str_lengths=40, tbl_width_chars=160
        ):
            sys.stdout.write(f"epoch {epoch}: {plural(rows.height, 'row')}\n{json_columns(rows)}\n")
        sys.stdout.flush()
