"""Check the first rows of each source for empty columns and wrong time units, in the epoch's job or in file footers.

In each epoch, the engine calls `start_counting`, adds the `aggregates` to its job, and passes their results to
`add_statistics`. It then calls `add_time_unit_hints`, which logs warnings and adds hints to the outcome of the epoch. Hints
do not change how rows are processed. They are not stored, so the checks are repeated after every start.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import parse_declared_columns
from slackwater.connectors import spark_connect_support
from slackwater.connectors.payloads.base import detect_field_names
from slackwater.connectors.source import Batch
from slackwater.core import schema
from slackwater.core.column_names import quote_identifier
from slackwater.core.humanize import plural
from slackwater.engine.engine_interface import IngestOutcome
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.epoch_sql import PER_UNIT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.connectors.files.parquet_footers import ParquetFooters

log = logging.getLogger("slackwater")

ROWS = 1000  # the number of rows of a source to check
_MAX_NAMES = 30  # column names in a message
_1990_US = 631_152_000_000_000
_AHEAD_US = 86_400_000_000
_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


@dataclass
class NonNullCounts:
    """Counts over the first rows of a source.

    Args:
        columns: The columns to check.
        rows: The number of rows so far.
        values: The number of non-NULL values in each column.
        data_names: The field names in the data of the epochs after which a column was still NULL in all rows.
        is_warned: Whether the warning about empty columns was logged.
        unit_is_hinted: Whether the hint about the event-time unit was given.
    """

    columns: Sequence[str]
    rows: int = 0
    values: dict[str, int] = field(default_factory=dict)
    data_names: set[str] = field(default_factory=set)
    is_warned: bool = False
    unit_is_hinted: bool = False

    @property
    def needs_more_rows(self) -> bool:
        return self.rows < ROWS

    def add(self, rows: int, values: Mapping[str, int]) -> None:
        self.rows += rows
        for name, count in values.items():
            self.values[name] = self.values.get(name, 0) + count

    @property
    def missing(self) -> list[str]:
        """The columns that are NULL in all rows so far."""
        return [name for name in self.columns if not self.values.get(name)]


def describe_empty_column(source: str, column: str, rows: int, names: Iterable[str]) -> str:
    """Return a warning about a column that is NULL in the first rows, with a suggestion.

    Args:
        source: The name of the source.
        column: The name of the column.
        rows: The number of rows checked.
        names: The field names in the data.
    """
    sorted_names = sorted(names)
    folded = {n.casefold(): n for n in reversed(sorted_names)}
    similar = folded.get(column.casefold()) or next(
        (folded[n] for n in difflib.get_close_matches(column.casefold(), folded, n=1)), None
    )
    hint = f'; did you mean "{similar}"?' if similar else ""
    more = f" and {len(sorted_names) - _MAX_NAMES} more" if len(sorted_names) > _MAX_NAMES else ""
    listed = f"; available: {', '.join(sorted_names[:_MAX_NAMES])}{more}" if sorted_names else ""
    return (
        f'source "{source}": the column "{column}" of the schema does not occur in the first {plural(rows, "row")}, so it is NULL in '
        f"all of them{listed}{hint}"
    )


def suggest_time_unit(number: int | None, unit: str | None, kind: str, clock_us: int) -> str | None:
    """Return a hint about the event-time unit if the first event times are plausible only in another unit. Else None.

    A time is plausible if it is between 1990 and tomorrow.

    Args:
        number: The median of the first event times, as a number. None if it is unknown.
        unit: The configured unit. None if no unit is configured.
        kind: The type of the event time: "integer", "string" (of digits, without a unit) or "timestamp" (for which
            `number` is in seconds since 1970).
        clock_us: The current time in microseconds.
    """
    if number is None:
        return None

    def fits(candidate: str) -> bool:
        return _is_plausible(number, number, candidate, clock_us)

    declared = "s" if kind == "timestamp" else unit
    if kind != "string" and fits(declared or "s"):
        return None
    meant = next((each for each in _NS if (kind == "string" or each != declared) and fits(each)), None)
    if meant is None:
        return None
    if kind == "integer":
        return f'did you mean event_time_unit = "{meant}"?'
    if kind == "timestamp":
        return (
            f'a number in a TIMESTAMP is read as epoch seconds: did you mean a BIGINT and event_time_unit = "{meant}"?'
        )
    return f'strings of digits are not times: did you mean a BIGINT and event_time_unit = "{meant}"?'


def _is_plausible(oldest: int, newest: int, unit: str, clock_us: int) -> bool:
    """Return whether some time between two numbers is plausible in a unit. See `suggest_time_unit`."""
    return newest * _NS[unit] >= _1990_US * 1000 and oldest * _NS[unit] <= (clock_us + _AHEAD_US) * 1000


@dataclass
class FirstRowsCheck:
    """Checks on the first rows of each source. `times`: SQL for the event time of each source."""

    session: SparkSession
    pipeline: Pipeline
    times: Mapping[str, str]
    # each mapping is by source
    _counts: dict[str, NonNullCounts] = field(default_factory=dict)
    _time_numbers: dict[str, tuple[str, str] | None] = field(default_factory=dict)  # see `_time_number`
    _statistics: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # of the latest epoch

    def add_statistics(self, name: str, statistics: Mapping[str, Any]) -> None:
        """Store the statistics of a source for the latest epoch, including the results of `aggregates`."""
        self._statistics[name] = dict(statistics)

    def start_counting(self, frames: Mapping[str, DataFrame]) -> None:
        """Prepare to check the declared columns and the event-time unit of each source that is new in `frames`."""
        for spec in self.pipeline.sources:
            if spec.name in frames and spec.name not in self._counts:
                connection = resolve_connection(spec.connection, self.pipeline.connections)
                # data of these sources can be read again to detect its field names
                is_rereadable = connection is not None and CONNECTORS[connection.kind].keeps_history
                declared = parse_declared_columns(spec.schema_) if spec.schema_ and is_rereadable else []
                columns = {c.casefold(): c for c in frames[spec.name].columns}
                names = [columns[c.casefold()] for c in declared if c.casefold() in columns]
                self._counts[spec.name] = NonNullCounts(names)
                self._time_numbers[spec.name] = self._time_number(spec.name, frames[spec.name])

    def _time_number(self, name: str, frame: DataFrame) -> tuple[str, str] | None:
        """Return the type of a source's event time, and SQL for it as a number. None if its unit is not checked."""
        step, text = self.pipeline.transform.step, self.pipeline.transform.step.event_time_column
        if self.times.get(name) == sql_analysis.CLOCK or step.time_mode == "processing":
            return None
        expression = quote_identifier(text) if text in frame.columns else text
        try:
            kind = frame.selectExpr(f"{expression} AS t").schema.fields[0].dataType.simpleString()
        except Exception:
            return None  # the error was already reported at startup
        if kind == "timestamp" or text == "_event_ts":
            return "timestamp", "unix_micros(_event_ts) div 1000000L"
        if kind == "string":
            return "string", f"try_cast({expression} AS BIGINT)"
        return ("integer", f"CAST({expression} AS BIGINT)") if kind in schema.INTEGERS else None

    def aggregates(self, name: str) -> list[Any]:
        """Return the aggregates to compute over the rows of a source. Empty once enough rows have been checked."""
        F = spark_connect_support.sql_functions(self.session)  # noqa: N806
        counts, number = self._counts.get(name), self._time_numbers.get(name)
        if counts is None or not counts.needs_more_rows:
            return []
        aggregates = [F.count(F.col(quote_identifier(c))).alias(f"__value{i}") for i, c in enumerate(counts.columns)]
        if number is not None:
            aggregates.append(F.expr(f"percentile_approx({number[1]}, 0.5)").alias("__number"))
        return aggregates

    def derive_from_footers(
        self, name: str, facts: Mapping[str, Any], footers: ParquetFooters | None, clock_us: int
    ) -> Mapping[str, Any] | None:
        """Return the results of `aggregates` from the footers of files, without reading rows.

        Return None if the footers are not sufficient, or if the rows may need a warning or a hint.

        Args:
            name: The name of the source.
            facts: The statistics of the source, from the footers.
            footers: The footers. None if they cannot be used.
            clock_us: The current time in microseconds.
        """
        if footers is None or not facts["rows"] or facts["bad"]:
            return None
        results: dict[str, Any] = {}
        for i, column in enumerate(self._counts[name].columns):
            nulls = footers.count_nulls(column)
            if nulls is None or nulls == facts["rows"]:
                return None
            results[f"__value{i}"] = facts["rows"] - nulls
        kind, _ = self._time_numbers[name] or (None, "")
        if kind is not None:  # the median is between the oldest and the newest time
            declared = "s" if kind == "timestamp" else str(self.pipeline.transform.step.event_time_unit)
            oldest, newest = (facts[which] // PER_UNIT[declared] for which in ("oldest", "newest"))
            if any(_is_plausible(oldest, newest, other, clock_us) for other in _NS if other != declared):
                return None
            results["__number"] = oldest
        return results

    def add_time_unit_hints(self, outcome: IngestOutcome, batch: Batch, clock_us: int) -> IngestOutcome:
        """Count the rows of an epoch, warn about columns without values, and return the outcome with unit hints.

        Args:
            outcome: The outcome of the epoch.
            batch: The batch of the epoch.
            clock_us: The current time in microseconds.
        """
        sources = dict(outcome.sources)
        for name, stats in outcome.sources.items():
            counts, results, number = (
                self._counts.get(name),
                self._statistics.pop(name, None),
                self._time_numbers.get(name),
            )
            if counts is None or results is None or not counts.needs_more_rows:
                continue
            counts.add(stats.rows, {c: results.get(f"__value{i}") or 0 for i, c in enumerate(counts.columns)})
            if number is not None:
                unit = self.pipeline.transform.step.event_time_unit
                hint = suggest_time_unit(results.get("__number"), unit, number[0], clock_us)
                if hint is not None and (stats.bad or not counts.unit_is_hinted):
                    sources[name] = replace(stats, unit_hint=hint)
                    counts.unit_is_hinted = True
            if counts.missing and not counts.is_warned:
                counts.data_names |= self._detect_data_names(name, batch.payload[name])
            if not counts.needs_more_rows:
                self.warn_about_empty_columns(name)
        return replace(outcome, sources=sources)

    def _detect_data_names(self, source: str, frame: DataFrame) -> set[str]:
        """Return the field names in the data of an epoch. Empty if they cannot be read."""
        spec = next(s for s in self.pipeline.sources if s.name == source)
        try:
            return set(detect_field_names(self.session, frame, spec.format, spec.options))
        except Exception as error:
            log.debug("the names in the data of %s cannot be read: %s", source, error)
            return set()

    def warn_about_empty_columns(self, *names: str) -> None:
        """Log a warning for each declared column that is NULL in the first rows of these sources (by default, all)."""
        for name in names or tuple(self._counts):
            counts = self._counts[name]
            if counts.is_warned or not counts.rows or not counts.missing:
                continue
            counts.is_warned = True
            for column in counts.missing:
                if column not in counts.data_names:  # otherwise the field exists, but is NULL
                    line = describe_empty_column(name, column, min(counts.rows, ROWS), counts.data_names)
                    log.warning("%s: %s", self.pipeline.name, line)
