"""`sw.why`: why a pipeline has no output yet, for programs and notebooks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.query.inspect import Texts
from slackwater.query.key_history import with_history
from slackwater.query.locate_state import store_at
from slackwater.query.why import why as look
from slackwater.query.why_report import WhyReport


def why(
    pipeline: Pipeline | str | Path, key: Mapping[str, Any] | str | None = None, stage: str | None = None
) -> WhyReport:
    """Who holds the watermark and what closes next, of the latest commit, beside a runner or without one.

    `pipeline`: it, or its TOML file. `key`: also tell of this key, as a mapping or as text ("user_id=u1,page=/"): what is open of
    it, its late rows and its last published results. `stage`: of several the one that the answer is about, else the last one. Takes no lock and starts no Spark. Raises StateError if there
    is no state yet, StartError, ConfigError.
    """
    spec = pipeline if isinstance(pipeline, Pipeline) else toml.load(Path(pipeline))
    store, texts = store_at(spec), _texts(key)
    try:
        file = None if isinstance(pipeline, Pipeline) else str(pipeline)
        return with_history(spec, store, look(spec, store, time.time_ns() // 1000, texts, stage, file), texts)
    finally:
        store.close()


def _texts(key: Mapping[str, Any] | str | None) -> Texts:
    if key is None:
        return ()
    if isinstance(key, str):
        return (key,)
    return {name: None if value is None else str(value) for name, value in key.items()}
