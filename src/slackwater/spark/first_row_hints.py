"""Check the first rows of each source for empty columns and wrong time units, as part of the epoch's job.

In each epoch, the engine calls `begin_sources`, adds the `aggregates` to its job, passes their results to
`add_statistics`, and calls `with_unit_hints`, which logs warnings and adds hints to the outcome of the epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import parse_declared_columns
from slackwater.connectors import spark_connect
from slackwater.connectors.payloads.field_name_detection import detect_field_names
from slackwater.connectors.source import Batch
from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.engine.engine_interface import IngestOutcome
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.first_row_checks import ROWS, FirstRowCounts, describe_empty_column, suggest_time_unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("slackwater")


@dataclass
class FirstRowHints:
    """Gives hints about the first rows of each source. `times`: SQL for the event time of each source."""

    session: SparkSession
    pipeline: Pipeline
    times: Mapping[str, str]
    # for each source: counts, the SQL of its event time as a number, statistics of the latest epoch, rows
    _counts: dict[str, FirstRowCounts] = field(default_factory=dict)
    _time_numbers: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    _statistics: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _frames: dict[str, DataFrame] = field(default_factory=dict)

    def add_statistics(self, name: str, statistics: Mapping[str, Any]) -> None:
        """Store the statistics of the latest epoch, which include the results of `aggregates`."""
        self._statistics[name] = dict(statistics)

    def begin_sources(self, frames: Mapping[str, DataFrame]) -> None:
        """Prepare the checks of each new source: of the values in its declared columns, and of its event-time unit."""
        for spec in self.pipeline.sources:
            if spec.name in frames and spec.name not in self._counts:
                connection = resolve_connection(spec.connection, self.pipeline.connections)
                is_rereadable = (
                    connection is not None and CONNECTORS[connection.kind].keeps_history
                )  # its data can be read again to find its field names
                declared = parse_declared_columns(spec.schema_) if spec.schema_ and is_rereadable else []
                columns = {c.casefold(): c for c in frames[spec.name].columns}
                names = [columns[c.casefold()] for c in declared if c.casefold() in columns]
                self._counts[spec.name] = FirstRowCounts(names)
                self._time_numbers[spec.name] = self._time_number(spec.name, frames[spec.name])

    def _time_number(self, name: str, frame: DataFrame) -> tuple[str, str] | None:
        """Return the type of a source's event time, and SQL for it as a number; None if its unit is not checked."""
        step, text = self.pipeline.transform.step, self.pipeline.transform.step.event_time_column
        if self.times.get(name) == sql_analysis.CLOCK or step.time_mode == "processing":
            return None
        expression = quote_identifier(text) if text in frame.columns else text
        try:
            kind = frame.selectExpr(f"{expression} AS t").schema.fields[0].dataType.simpleString()
        except Exception:
            return None  # reported at the start
        if kind == "timestamp" or text == "_event_ts":
            return "timestamp", "unix_micros(_event_ts) div 1000000L"
        if kind == "string":
            return "string", f"try_cast({expression} AS BIGINT)"
        return ("integer", f"CAST({expression} AS BIGINT)") if kind in schema.INTEGERS else None

    def aggregates(self, name: str) -> list[Any]:
        """Return the aggregates to compute over a source's rows; empty once enough rows have been checked."""
        F = spark_connect.sql_functions(self.session)  # noqa: N806
        counts, number = self._counts.get(name), self._time_numbers.get(name)
        if counts is None or not counts.needs_rows:
            return []
        aggregates = [F.count(F.col(quote_identifier(c))).alias(f"__value{i}") for i, c in enumerate(counts.columns)]
        if number is not None:
            aggregates.append(F.expr(f"percentile_approx({number[1]}, 0.5)").alias("__number"))
        return aggregates

    def with_unit_hints(self, outcome: IngestOutcome, batch: Batch, clock_us: int) -> IngestOutcome:
        """Count the rows of an epoch, warn about columns without values, and add unit hints to the outcome."""
        sources = dict(outcome.sources)
        for name, stats in outcome.sources.items():
            counts, results, number = (
                self._counts.get(name),
                self._statistics.pop(name, None),
                self._time_numbers.get(name),
            )
            if counts is None or results is None or not counts.needs_rows:
                continue
            counts.add(stats.rows, {c: results.get(f"__value{i}") or 0 for i, c in enumerate(counts.columns)})
            if number is not None:
                unit = self.pipeline.transform.step.event_time_unit
                hint = suggest_time_unit(results.get("__number"), unit, number[0], clock_us)
                if hint is not None and (stats.bad or not counts.unit_is_hinted):
                    sources[name] = replace(stats, unit_hint=hint)
                    counts.unit_is_hinted = True
            if counts.missing and not counts.is_warned:
                self._frames[name] = batch.payload[name]
            if not counts.needs_rows:
                self.warn_missing(name)
        return replace(outcome, sources=sources)

    def warn_missing(self, *names: str) -> None:
        """Warn about schema columns that are NULL in the first rows of these sources (by default, all sources)."""
        for name in names or tuple(self._counts):
            counts, frame = self._counts[name], self._frames.pop(name, None)
            if frame is None or counts.is_warned or not counts.rows:
                continue
            counts.is_warned = True
            spec = next(s for s in self.pipeline.sources if s.name == name)
            try:
                data_names = detect_field_names(self.session, frame, spec.format, spec.options)
            except Exception as error:
                log.debug("the names in the data of %s cannot be read: %s", name, error)
                data_names = []
            for column in counts.missing:
                if column not in data_names:  # otherwise the field exists and is NULL
                    line = describe_empty_column(name, column, min(counts.rows, ROWS), data_names)
                    log.warning("%s: %s", self.pipeline.name, line)
