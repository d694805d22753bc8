"""Detect durations below one second without a unit: `gap_ms = 30` is probably a mistake."""

from __future__ import annotations

from collections.abc import Iterator

from slackwater.config.message_format import DurationWithoutUnit
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import Spec, find_duration_keys


def find_durations_without_unit(pipeline: Pipeline) -> Iterator[tuple[str, str, int]]:
    """Yield each duration below one second without a unit, as (key, key that takes a unit, milliseconds)."""
    specs: list[tuple[str, Spec]] = [(f"sources[{i}]", source) for i, source in enumerate(pipeline.sources)]
    for name, stage_pipeline in pipeline.stage_pipelines.items():
        step = stage_pipeline.transform.step
        specs.append((f'stage "{name}": {step.table}' if pipeline.stages else step.CONFIG_PATH, step))
    for path, spec in specs:
        for name, key in find_duration_keys(type(spec)).items():
            if isinstance(value := getattr(spec, key), DurationWithoutUnit):
                yield f"{path}.{key}", name, int(value)
