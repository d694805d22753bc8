"""Statistics of a source's rows in an epoch: row counts, bad rows, and the newest event time with its location.

An epoch obtains them from file footers, from a separate job, or by observation:

    footers    rows ─▶ SQL ─▶ …                                full speed; the footers were read before
    separate   rows ─▶ SQL ─▶ …                                full speed
               their time only, read again ─▶ aggregated       0.1 µs of CPU time per row, and one more job
    observed   rows ─▶ [observation] ─▶ SQL ─▶ …               splits the code that Spark generates: 0.5 µs per row
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slackwater.connectors import spark_connect_support
from slackwater.connectors.files.source import SIZE_MODULUS
from slackwater.connectors.source import spark_error_reason
from slackwater.core.column_names import CORRUPT
from slackwater.core.humanize import format_iso
from slackwater.core.paths import file_uri_to_path
from slackwater.engine.engine_interface import SourceStats
from slackwater.errors import EpochError, Topic
from slackwater.operators import unstorable_rows
from slackwater.operators.dead_letters import OUTSIDE
from slackwater.tuning_switches import is_enabled
from slackwater.watermark import CONFIRMS, SourceActivity, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.connectors.source import ColumnStats


FILE = "__file"  # hidden column: the file that a row was read from
FINGERPRINT = (
    "__mark"  # hidden column: a number derived from the time and size of a row's file, see `build_fingerprint_sql`
)
_TOPICS = "struct(_topic, _partition, _offset)"  # the location of a record in one of several topics
# the number of partitions, and of rows times partitions, from which the newest times are computed in a separate job
MIN_PARTITIONS, MIN_COMPARISONS = 128, 25_000_000
_OFFSET_BITS = 44  # the lower bits of a record's location contain the offset, and the higher bits the partition

Observe = Callable[["DataFrame", Sequence[Any]], tuple["DataFrame", Any]]
Facts = Mapping[str, Any]  # the statistics of a source, by the names of the aggregates in `build_statistics_columns`


def build_fingerprint_sql() -> str:
    """Return SQL for the fingerprint of a row's file, which identifies the file within its batch.

    A fingerprint is cheaper than the name of the file, which Spark would copy for every row. See also
    `FileEntry.has_fingerprint`.
    """
    return f"unix_millis(_metadata.file_modification_time) * {SIZE_MODULUS}L + _metadata.file_size % {SIZE_MODULUS}L AS {FINGERPRINT}"


def build_statistics_columns(timed: DataFrame, partitions: Mapping[str, int], usable_only: bool) -> list[Any]:
    """Return the aggregates that compute the statistics of a source. The aggregate `place` locates the newest row.

    Args:
        timed: The rows of the source.
        partitions: The record count of each partition.
        usable_only: Whether the newest times exclude bad rows. False is faster, and correct as long as no row is bad.
    """
    F, columns = spark_connect_support.sql_functions(timed), timed.columns  # noqa: N806
    event_us = F.expr(
        "CASE WHEN __bad IS NULL THEN unix_micros(_event_ts) END" if usable_only else "unix_micros(_event_ts)"
    )
    aggregates = [F.count(F.lit(1)).alias("rows"), F.count("__bad").alias("bad"), F.max(event_us).alias("newest")]
    topics = {partition.rpartition("-")[0] for partition in partitions}
    offset = f"shiftleft(CAST(_partition AS BIGINT), {_OFFSET_BITS}) + _offset"
    of_topics = offset if len(topics) == 1 else _TOPICS
    place = next(
        (p for c, p in (("_offset", of_topics), (FINGERPRINT, FINGERPRINT), (FILE, FILE)) if c in columns), None
    )
    if place is not None:
        where = F.max_by(F.expr(place), event_us)
        if place == _TOPICS:  # converted to text, because Python cannot read an observed struct before Spark 4.1
            parts = (where["_topic"], F.lit("-"), where["_partition"], F.lit(" at offset "), where["_offset"])
            where = F.concat(*(part.cast("string") for part in parts))
        aggregates.append(where.alias("place"))
    if usable_only:
        aggregates += [
            F.count(F.when(F.col("__bad") == reason, 1)).alias(reason) for reason in ("undecodable", "future", OUTSIDE)
        ]
    for number, partition in enumerate(() if needs_separate_job(partitions) else partitions):
        topic, _, part = partition.rpartition("-")
        in_partition = F.col("_partition") == int(part)
        if len(topics) > 1:
            in_partition &= F.col("_topic") == topic
        aggregates.append(F.max(F.when(in_partition, event_us)).alias(f"newest{number}"))
    return aggregates


def derive_statistics_from_footers(stats: ColumnStats | None, unit_us: int, first: int, last: int) -> Facts | None:
    """Derive the statistics of a source from file footers, without reading rows. The event time must be a plain column.

    Args:
        stats: The statistics of the event-time column. None if the footers do not contain them.
        unit_us: The configured unit in microseconds. 0 if the type of the column defines it.
        first: The first usable time in microseconds. Earlier rows are bad.
        last: The last usable time in microseconds. Later rows are bad.

    Returns:
        The statistics. None if the footers are not sufficient, because rows may be bad for a reason other than a
            missing time.
    """
    if stats is None or bool(unit_us) == bool(stats.unit_us):
        return None
    step = unit_us or stats.unit_us
    oldest, newest = (None if value is None else value * step for value in (stats.least, stats.greatest))
    if oldest is not None and newest is not None and not first <= oldest <= newest <= last:
        return None
    never = dict.fromkeys(("undecodable", "future", OUTSIDE), 0)
    return {
        "rows": stats.rows,
        "bad": stats.nulls,
        "oldest": oldest,
        "newest": newest,
        "place": stats.newest_file,
        **never,
    }


def count_unstorable_rows(rows: DataFrame) -> Any:
    return spark_connect_support.sql_functions(rows).count(unstorable_rows.UNFIT).alias("unfit")


def needs_separate_job(partitions: Mapping[str, int]) -> bool:
    """Return whether to compute the newest time of each partition in a separate job.

    In the main job, each partition needs an aggregate that is updated for every row (6 to 24 ns). With many rows in
    many partitions, it is cheaper to read the records again, decode only the time, and aggregate by partition.
    `partitions`: the record count of each partition.
    """
    return len(partitions) >= MIN_PARTITIONS and len(partitions) * sum(partitions.values()) >= MIN_COMPARISONS


def newest_times_by_partition(
    timed: DataFrame, source: str, newest: int | None, tasks: int
) -> Mapping[str, int | None]:
    """Run a job that finds the newest usable event time of each partition that has rows.

    Args:
        timed: The rows of the source.
        source: The name of the source.
        newest: The newest time over all partitions, as computed by the epoch's main job.
        tasks: The number of tasks in the job.

    Raises:
        EpochError: The input has changed since the main job read it.
    """
    F = spark_connect_support.sql_functions(timed)  # noqa: N806
    usable = F.expr("CASE WHEN __bad IS NULL THEN unix_micros(_event_ts) END")
    # Without `coalesce`, each partition would cost a task of a few milliseconds, and then each shard another task.
    by_partition = timed.coalesce(tasks).groupBy("_topic", "_partition").agg(F.max(usable).alias("newest"))
    times = {f"{row['_topic']}-{row['_partition']}": row["newest"] for row in by_partition.coalesce(1).collect()}
    again = max((t for t in times.values() if t is not None), default=None)
    if again != newest:  # row counts are not compared: Spark counts the rows of a repeated task twice
        then, now = ("no event time" if t is None else format_iso(t) for t in (newest, again))
        raise EpochError(
            f'source "{source}": the input changed between two reads: the newest event time was {then} and is now '
            f"{now}, so this epoch was not committed; the next start runs it again",
            Topic.INPUT_CHANGED,
        )
    return times


def source_stats(
    facts: Mapping[str, Any],
    partitions: Mapping[str, int],
    file_of: Callable[[int], str | None],
    newest: Mapping[str, int | None] | None = None,
) -> SourceStats:
    """Convert the results of `build_statistics_columns` to `SourceStats`.

    Args:
        facts: The results, by column.
        partitions: The record count of each partition.
        file_of: A function that returns the names of the files with a given fingerprint, for messages.
        newest: The newest time of each partition. None if no separate job computed it.
    """
    if newest is None:
        newest = {name: facts[f"newest{n}"] for n, name in enumerate(partitions)}
    rows, bad = facts["rows"] or 0, facts["bad"] or 0
    return SourceStats(
        rows,
        rows - bad,
        facts["newest"],
        facts.get("undecodable") or 0,
        facts.get("future") or 0,
        {name: SourceActivity(rows, newest.get(name)) for name, rows in partitions.items()},
        outside=facts.get(OUTSIDE) or 0,
        place=_describe_location(facts.get("place"), partitions, file_of),
    )


def _describe_location(
    place: int | str | None, partitions: Mapping[str, int], file_of: Callable[[int], str | None]
) -> str | None:
    """Return the location of a row as text for messages. None if it is unknown.

    Args:
        place: The value of the aggregate `place` in `build_statistics_columns`.
        partitions: The record count of each partition. Empty for files.
        file_of: A function that returns the names of the files with a given fingerprint.
    """
    if place is None:
        return None
    if isinstance(place, str):
        return place if partitions else file_uri_to_path(place)
    if isinstance(place, int) and not partitions:
        return file_of(place)
    topic = next(iter(partitions)).rpartition("-")[0]
    return f"{topic}-{place >> _OFFSET_BITS} at offset {place % (1 << _OFFSET_BITS)}"


def locate_newest_event_times(timed: DataFrame, jump_us: int, partitioned: bool) -> dict[str, tuple[Span, ...]]:
    """Return the spans that contain the newest event times, by partition. The name "" stands for the whole source.

    A span consists of the first and the last event time in a time range, and the number of rows in it.

    Args:
        timed: The rows of the source.
        jump_us: The length of the time ranges in microseconds.
        partitioned: Whether the source has partitions.
    """
    F = spark_connect_support.sql_functions(timed)  # noqa: N806
    by = "concat(_topic, '-', _partition)" if partitioned else "''"
    times = timed.where("__bad IS NULL").selectExpr(f"{by} AS p", "unix_micros(_event_ts) AS t")
    stretches = times.groupBy("p", F.expr(f"t - pmod(t, {jump_us}L)").alias("b")).agg(
        F.min("t").alias("low"), F.max("t").alias("high"), F.count("*").alias("n")
    )
    nth = stretches.selectExpr("*", "row_number() OVER (PARTITION BY p ORDER BY b DESC) AS nth")
    spans_by_name: dict[str, list[Span]] = {}
    for row in nth.where(f"nth <= {CONFIRMS}").collect():
        for name in {row["p"], ""}:
            spans_by_name.setdefault(name, []).append((row["low"], row["high"], row["n"]))
    return {name: tuple(spans) for name, spans in spans_by_name.items()}


# -- collector -----------------------------------------------------------------------------------------------------------


MANY_ROWS = 250_000  # estimated rows of a source per epoch from which a separate job is clearly cheaper


@dataclass
class SourceStatisticsCollector:
    """Collector that chooses for each epoch of one engine how to obtain source statistics.

    It assumes that an epoch has about as many rows as the previous one, because the row count is unknown at its start.
    """

    _rows: dict[str, int] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(thread_name_prefix="slackwater-stats"))

    def attach(
        self, name: str, timed: DataFrame, aggregates: Sequence[Any], observe: Observe, facts: Facts | None = None
    ) -> tuple[DataFrame, PendingStatistics]:
        """Return the rows to process, possibly with an observation attached, and a handle to their statistics.

        Args:
            name: The name of the source.
            timed: The rows of the source.
            aggregates: The aggregates to compute over the rows.
            observe: A function that adds an observation of aggregates to rows. It returns the rows and the observation.
            facts: The statistics, if they are already available, in which case nothing is computed.
        """
        if facts is not None:
            return timed, PendingStatistics(name, facts)
        is_separate = self._rows.get(name, 0) >= MANY_ROWS and is_columnar_source(timed)
        if is_separate and is_enabled("statistics"):
            return timed, PendingStatistics(name, self._pool.submit(_collect, timed, aggregates))
        observed_rows, observation = observe(timed, aggregates)
        return observed_rows, PendingStatistics(name, observation)

    def record_rows(self, name: str, rows: int) -> None:
        self._rows[name] = rows


@dataclass(frozen=True)
class PendingStatistics:
    """Handle to the statistics of one source: an observation, a running job, or the statistics themselves."""

    source: str
    _answer: Any

    def get(self) -> Facts:
        """Wait for the statistics and return them by name. Raises EpochError if they cannot be computed."""
        if not isinstance(self._answer, Future):
            facts: Facts = self._answer if isinstance(self._answer, Mapping) else self._answer.get
            return facts
        try:
            return self._answer.result()
        except Exception as error:
            raise EpochError(
                f'the epoch failed and was not committed: the rows of source "{self.source}" cannot be counted: {spark_error_reason(error)}'
            ) from error


def is_columnar_source(timed: DataFrame) -> bool:
    """Return whether the event times can be read again cheaply: the rows are in files other than JSON and CSV."""
    return FINGERPRINT in timed.columns and CORRUPT not in timed.columns


def _collect(timed: DataFrame, aggregates: Sequence[Any]) -> Facts:
    facts: Facts = timed.agg(*aggregates).collect()[0].asDict()
    return facts
