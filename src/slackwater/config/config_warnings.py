"""Warnings about a valid config: a large state, durations without a unit, and late rows that cannot be replayed."""

from __future__ import annotations

import math
from collections.abc import Iterator

from slackwater.config.aggregation import QUANTILE_K, Aggregation
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.error_text import DurationWithoutUnit
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.spec_base import Spec, find_duration_keys
from slackwater.config.step_base import KeyedStep, StepBase
from slackwater.config.window import Window

GIB = 1 << 30
DEFAULT_GIB = 16
ROW_BYTES = 48  # the hidden columns of a state row
KEY_BYTES = 24  # assumed per key column
SKETCH_BYTES = 1024  # for an HLL sketch of about 250 distinct values; the maximum is 4 bytes * 2^hll_precision
EXACT_BYTES = 16  # assumed per value that a group keeps
CUSTOM_BYTES = 64  # assumed per group of a user-defined aggregation
VERSIONS = 2  # old versions of a row stay in their segments until a merge


def estimate_bytes(window: Window) -> int:
    """Return the estimated state size (bytes) of a window that reaches its `max_groups_per_window`.

    The constants of this module define the assumed sizes of keys, sketches and sets.
    """
    accumulators = sum(map(_accumulator_bytes, window.aggregations))
    row = ROW_BYTES + KEY_BYTES * len(window.group_by) + accumulators
    panes = 1
    if window.kind != "session" and window.duration_ms:
        panes = window.duration_ms // math.gcd(window.duration_ms, window.hop_ms or window.duration_ms)
    groups = window.max_groups_per_window or 1_000_000
    return groups * panes * row * VERSIONS


def _accumulator_bytes(a: Aggregation) -> int:
    if not a.builtin:
        return CUSTOM_BYTES
    if a.agg == "count_distinct" and a.mode != "exact":
        return SKETCH_BYTES
    if a.agg == "approx_quantile":
        return 8 * (a.k or QUANTILE_K)  # size of the buffer; a sketch is about three times as large
    values = a.max_values_per_group or a.max_distinct_values_per_group
    if values is not None:
        return values * (EXACT_BYTES + (8 if a.agg in ("collect_list", "top_k") else 0))
    return {"count": 8, "min": 16, "max": 16, "sum": 32, "avg": 32, "var": 56, "stddev": 56}.get(a.agg, 24)


def size_warnings(step: StepBase) -> tuple[str, ...]:
    """Return a warning if the step is a window whose state may exceed 1 GiB; otherwise, an empty tuple.

    If the config does not set max_groups_per_window, the threshold is DEFAULT_GIB, because the default of that key is
    only a safety limit.
    """
    if not isinstance(step, Window) or (size := estimate_bytes(step)) <= GIB:
        return ()
    is_default = step.max_groups_per_window == step.derived().get("max_groups_per_window")
    if is_default and size <= DEFAULT_GIB * GIB:
        return ()
    return (
        f"the state may grow to {size / GIB:.1f} GiB at max_groups_per_window = {step.max_groups_per_window:,}; "
        "lower the limit, shorten the window, or provide enough disk space",
    )


def find_durations_without_unit(pipeline: Pipeline) -> Iterator[tuple[str, str, int]]:
    """Yield durations below one second that were written without a unit, such as `gap_ms = 30`.

    They are probably mistakes. Each item is (path of the key, name of the key that takes a unit, milliseconds).
    """
    specs: list[tuple[str, Spec]] = [(f"sources[{i}]", source) for i, source in enumerate(pipeline.sources)]
    for name, stage_pipeline in pipeline.stage_pipelines.items():
        step = stage_pipeline.transform.step
        specs.append((f'stage "{name}": {step.table}' if pipeline.stages else step.CONFIG_PATH, step))
    for path, spec in specs:
        for name, key in find_duration_keys(type(spec)).items():
            if isinstance(value := getattr(spec, key), DurationWithoutUnit):
                yield f"{path}.{key}", name, int(value)


_EXPECTED = 'expected a Postgres table, or a Delta or Iceberg table with mode = "merge"'


def find_replay_obstacle(pipeline: Pipeline) -> str | None:
    """Return why `dlq replay` cannot use a pipeline's late rows to correct windows; None if it can."""
    if len(pipeline.stage_pipelines) > 1:
        return "the pipeline has several stages, and a stage cannot correct results that another stage has read; expected a pipeline with one stage"
    step = pipeline.transform.step
    if pipeline.transform.join is not None:
        return "the rows of a join are final; expected a window"
    if isinstance(step, KeyedStep):
        return f"a {step.kind} stage no longer has the state for late rows; expected a window"
    if not isinstance(step, Window):
        return None
    targets = [(stage_pipeline.target, _kind(stage_pipeline)) for stage_pipeline in pipeline.per_target.values()]
    append_only = [pair for pair in targets if not pair[0].upserts(pair[1], step)]
    readable = [pair for pair in targets if pair not in append_only and CONNECTORS[pair[1]].returns_windows]
    is_marked = step.emit_metadata and len(targets) > 1  # _revision then marks corrected rows on an append-only target
    if readable and (is_marked or not append_only):
        return None
    target, kind = next(iter(append_only or targets))
    restriction = "is append-only" if append_only else "cannot be read back"
    return f"late rows correct windows in the target, but the target ({CONNECTORS[kind].location_text(target)}) {restriction}; {_EXPECTED}"


def describe_replay_limits(pipeline: Pipeline) -> Iterator[str]:
    """Yield a warning if late rows become dead letters that `dlq replay` cannot apply."""
    if any(stage_pipeline.transform.step.late_data == "dlq" for stage_pipeline in pipeline.stage_pipelines.values()):
        why = find_replay_obstacle(pipeline)
        if why is not None:
            yield f'late_data = "dlq" keeps late rows only for inspection; dlq replay cannot apply them: {why}'


def _kind(pipeline: Pipeline) -> str:
    connection = resolve_connection(pipeline.target.connection, pipeline.connections)
    return "console" if connection is None else connection.kind
