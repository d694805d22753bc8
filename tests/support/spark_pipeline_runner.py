"""Fixture that runs pipelines on Spark over JSON-lines files."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest


@dataclass
class SparkPipelineRunner:
    """Run pipelines on Spark over JSON-lines files in a separate directory."""

    spark: Any
    home: Path
    statuses: list[Any] = field(default_factory=list)
    notices: list[tuple[str, str]] = field(default_factory=list)

    def write_input_file(self, name: str, rows: Sequence[Mapping[str, Any]], folder: str = "in") -> Path:
        """Write one input file. Modification times ascend, so that files are read in the order of writing."""
        directory = self.home / folder
        directory.mkdir(exist_ok=True)
        path = directory / name
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        when = 1_600_000_000 + 10 * len(list(directory.iterdir()))
        os.utime(path, (when, when))
        return path

    def run_pipeline(self, **settings: Any) -> pl.DataFrame:
        """Run with --available-now --flush by default, and return the whole target, sorted."""
        import slackwater as sw

        lake = sw.FilesConnection()
        run_options: dict[str, Any] = {
            "name": "test",
            "target": lake,
            "target_path": str(self.home / "out"),
            "state_store": sw.StateStore(kind="files", path=str(self.home / "state")),
            "available_now": True,
            "flush": True,
            "spark": self.spark,
            "on_status": self.statuses.append,
            "on_notice": lambda level, line: self.notices.append((level, line)),
        } | settings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of PySpark
            sw.run_streaming_pipeline(**run_options)
        return self.read_output()

    def read_output(self, folder: str = "out") -> pl.DataFrame:
        """Return the published rows as one frame, sorted by the first columns."""
        files = sorted((self.home / folder).glob("*.parquet"))
        if not files:
            return pl.DataFrame()
        frame = pl.concat([pl.read_parquet(p) for p in files])
        return frame.sort(frame.columns[:4])

    def files_source(self, schema: str, name: str = "events", folder: str = "in", **settings: Any) -> Any:
        import slackwater as sw

        return sw.Source(
            name=name,
            connection=sw.FilesConnection(),
            query=str(self.home / folder / "*.jsonl"),
            format="json",
            schema=schema,
            **settings,
        )


@pytest.fixture
def runner(spark: Any, tmp_path: Path) -> SparkPipelineRunner:
    return SparkPipelineRunner(spark, tmp_path)
