"""What a job tells of a source's rows beside its work: how many, how many bad, how new, and where the newest was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slackwater.core.local_files import local_name
from slackwater.core.time import format_iso
from slackwater.engine.protocol import SourceStats
from slackwater.errors import EpochError
from slackwater.operators import storability
from slackwater.operators.dead_letters import OUTSIDE
from slackwater.sources import spark_connect
from slackwater.sources.files import MARKS
from slackwater.watermark import CONFIRMS, SourceActivity, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.sources.parquet_footers import ColumnStats

FILE = "__file"  # hidden: the file that a row was read from
MARK = "__mark"  # hidden: a number that tells this file from the others of its batch
_TOPICS = "struct(_topic, _partition, _offset)"  # where a record of one of several topics lies
MIN_PARTITIONS, MIN_COMPARISONS = 128, 25_000_000  # partitions, and rows times partitions: see `needs_separate_job`
_OF_PARTITION = 44  # bits of an offset, below those of the partition

Facts = Mapping[str, Any]  # by the names that `statistics` gives them


def mark_sql() -> str:
    """A file by a number: a name would be copied for each row. See `sources.files.FileEntry.mark`."""
    return f"unix_millis(_metadata.file_modification_time) * {MARKS}L + _metadata.file_size % {MARKS}L AS {MARK}"


def statistics_columns(timed: DataFrame, partitions: Mapping[str, int], usable_only: bool) -> list[Any]:
    """What is told of a source's rows. While no row is bad the few aggregates do that need not look at `__bad`.

    Its columns that say where a row is from tell it of the newest one.
    """
    F, columns = spark_connect.sql_functions(timed), timed.columns  # noqa: N806
    event_us = F.expr(
        "CASE WHEN __bad IS NULL THEN unix_micros(_event_ts) END" if usable_only else "unix_micros(_event_ts)"
    )
    aggregates = [F.count(F.lit(1)).alias("rows"), F.count("__bad").alias("bad"), F.max(event_us).alias("newest")]
    topics = {partition.rpartition("-")[0] for partition in partitions}
    offset = f"shiftleft(CAST(_partition AS BIGINT), {_OF_PARTITION}) + _offset"
    of_topics = offset if len(topics) == 1 else _TOPICS
    place = next((p for c, p in (("_offset", of_topics), (MARK, MARK), (FILE, FILE)) if c in columns), None)
    if place is not None:
        where = F.max_by(F.expr(place), event_us)
        if place == _TOPICS:  # as text: an observed struct is nothing that Python reads before Spark 4.1
            parts = (where["_topic"], F.lit("-"), where["_partition"], F.lit(" at offset "), where["_offset"])
            where = F.concat(*(part.cast("string") for part in parts))
        aggregates.append(where.alias("place"))
    if usable_only:
        aggregates += [
            F.count(F.when(F.col("__bad") == why, 1)).alias(why) for why in ("undecodable", "future", OUTSIDE)
        ]
    for number, partition in enumerate(() if needs_separate_job(partitions) else partitions):
        topic, _, part = partition.rpartition("-")
        here = F.col("_partition") == int(part)
        if len(topics) > 1:
            here &= F.col("_topic") == topic
        aggregates.append(F.max(F.when(here, event_us)).alias(f"newest{number}"))
    return aggregates


def facts_from_footers(stats: ColumnStats | None, unit_us: int, first: int, last: int) -> Facts | None:
    """The same of rows that nobody looked at, for an event time that is a column with so long a step (0: that of its type).

    None where a row may be bad for another reason than that it has no time, as times before `first` or after `last` (µs) are.
    """
    if stats is None or bool(unit_us) == bool(stats.unit_us):
        return None
    step = unit_us or stats.unit_us
    oldest, newest = (None if value is None else value * step for value in (stats.least, stats.greatest))
    if oldest is not None and newest is not None and not first <= oldest <= newest <= last:
        return None
    never = dict.fromkeys(("undecodable", "future", OUTSIDE), 0)
    return {"rows": stats.rows, "bad": stats.nulls, "newest": newest, "place": stats.newest_file, **never}


def count_unfit(rows: DataFrame) -> Any:
    return spark_connect.sql_functions(rows).count(storability.UNFIT).alias("unfit")


def needs_separate_job(partitions: Mapping[str, int]) -> bool:
    """Whether the newest time of each is asked by a job of its own, and not observed beside the epoch's. `partitions`: their records.

    Each that is observed is an aggregate that looks at every row (6 to 24 ns): for many rows of many partitions it costs less to read the
    records once more, of which only the time is decoded, and to fold them by partition.
    """
    return len(partitions) >= MIN_PARTITIONS and len(partitions) * sum(partitions.values()) >= MIN_COMPARISONS


def newest_by_partition(timed: DataFrame, source: str, newest: int | None, tasks: int) -> Mapping[str, int | None]:
    """The newest usable event time of each partition that has rows, by a job of so many tasks. `newest`: of all, as the epoch's has seen it.

    Raises EpochError if it is not the same input any more.
    """
    F = spark_connect.sql_functions(timed)  # noqa: N806
    usable = F.expr("CASE WHEN __bad IS NULL THEN unix_micros(_event_ts) END")
    # not a task per partition, of which each is a few milliseconds, nor as many as there are shards behind them
    each = timed.coalesce(tasks).groupBy("_topic", "_partition").agg(F.max(usable).alias("newest"))
    newest_by_partition = {f"{row['_topic']}-{row['_partition']}": row["newest"] for row in each.coalesce(1).collect()}
    again = max((t for t in newest_by_partition.values() if t is not None), default=None)
    if again != newest:  # rows are not counted: Spark counts those of a task twice that it lost and ran again
        then, now = ("no event time" if t is None else format_iso(t) for t in (newest, again))
        raise EpochError(
            f'source "{source}": the input was not the same when it was read again for the newest time of each partition: {then} was the newest '
            f"of all, now it is {now}; nothing of this epoch was committed, the next start repeats it"
        )
    return newest_by_partition


def source_stats(
    facts: Mapping[str, Any],
    partitions: Mapping[str, int],
    file_of: Callable[[int], str | None],
    newest: Mapping[str, int | None] | None = None,
) -> SourceStats:
    """`file_of`: the file of a `MARK`. `newest`: of each partition, where they are too many to be observed."""
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
    """Where a row was read, for people."""
    if place is None:
        return None
    if isinstance(place, str):
        return place if partitions else local_name(place)
    if isinstance(place, int) and not partitions:
        return file_of(place)
    topic = next(iter(partitions)).rpartition("-")[0]
    return f"{topic}-{place >> _OF_PARTITION} at offset {place % (1 << _OF_PARTITION)}"


def newest_spans(timed: DataFrame, jump_us: int, partitioned: bool) -> dict[str, tuple[Span, ...]]:
    """The event times of the newest rows, in stretches shorter than `jump_us`: of each partition, and of all."""
    F = spark_connect.sql_functions(timed)  # noqa: N806
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
