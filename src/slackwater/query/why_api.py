"""`sw.why`: explains to programs and notebooks why a pipeline has not emitted a result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.query.key_history import add_key_history
from slackwater.query.locate_state import locate_store
from slackwater.query.state_inspection import Texts
from slackwater.query.why_report import WhyReport
from slackwater.query.why_report_builder import build_why_report as build_report


def why(
    pipeline: Pipeline | str | Path, key: Mapping[str, Any] | str | None = None, stage: str | None = None
) -> WhyReport:
    """Report what holds the watermark in the latest commit, and which windows close next.

    It works whether or not a runner is active, takes no lock, and does not start Spark.

    Args:
        pipeline: The pipeline, or its TOML file.
        key: A key to include in the report, as a mapping or as a string ("user_id=u1,page=/"). The report then
            contains the key's open windows, late rows and last published results.
        stage: The only stage to report on. By default, the report is about the last stage, and `stages` has one for
            each.

    Raises StateError if there is no state yet, StartError, or ConfigError.
    """
    spec = pipeline if isinstance(pipeline, Pipeline) else toml.load(Path(pipeline))
    store, texts = locate_store(spec), _texts(key)
    try:
        file = None if isinstance(pipeline, Pipeline) else str(pipeline)
        return add_key_history(
            spec, store, build_report(spec, store, time.time_ns() // 1000, texts, stage, file), texts
        )
    finally:
        store.close()


def _texts(key: Mapping[str, Any] | str | None) -> Texts:
    if key is None:
        return ()
    if isinstance(key, str):
        return (key,)
    return {name: None if value is None else str(value) for name, value in key.items()}
