"""A pipeline with a dead letter, for tests of the page."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
from tests.support.local_pipeline_script import MicroBatch
from tests.support.ui_pipeline_states import DAY, S, run_two_source_pipeline, write_two_source_config

from slackwater.config import toml
from slackwater.core.dead_letter_columns import LETTER
from slackwater.runner.component_factory import create_dead_letter_writer

SCHEMA = {f.name: f.polars for f in LETTER}


def run_pipeline_with_late_dead_letter(tmp_path: Path) -> Path:
    """Run a pipeline and publish one dead letter for a late row of u1. Return the config file."""
    file = write_two_source_config("session", tmp_path)
    lake = f'[connections.away]\nkind = "files"\n[dead_letter]\nconnection = "away"\npath = "{tmp_path}/away"\n'
    text = file.read_text().replace(
        'connection = "lake"\npath = "out"', f'connection = "lake"\npath = "{tmp_path}/out"'
    )
    file.write_text(text.replace('event_time_column = "ts"', 'event_time_column = "ts"\nlate_data = "dlq"') + lake)
    run_two_source_pipeline(
        file, [MicroBatch({"web": [{"ts": DAY, "user": "u1"}], "app": [{"ts": DAY, "user": "u<b>"}]})]
    )
    event_time = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
    letter = {
        "reason": "late",
        "pipeline": "law",
        "source": "web",
        "epoch": 0,
        "value": b'{"user": "u1", "note": "<script>"}',
        "event_time": event_time,
        "watermark": event_time + dt.timedelta(minutes=5),
        "late_us": 300 * S,
        "cause": "lateness",
        "file": "web/1.jsonl",
        "group_key": '{"user":"u1"}',
    }
    target = create_dead_letter_writer(toml.load(file), "state")
    assert target is not None
    target.open()
    target.publish(0, pl.DataFrame([{n: letter.get(n) for n in SCHEMA}], schema=SCHEMA))
    target.close()
    return file
