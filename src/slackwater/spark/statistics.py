"""What a job tells of a source's rows beside its work: how many, how many bad, how new, and where the newest was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.engine.protocol import SourceStats
from slackwater.operators import fitting
from slackwater.operators.dead_letters import OUTSIDE
from slackwater.sources.files import local_name
from slackwater.watermark import CONFIRMS, Heard, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE = "__file"  # hidden: the file that a row was read from


def statistics(partitions: Sequence[str], usable_only: bool, columns: Sequence[str]) -> list[Any]:
    """What is told of a source's rows. While no row is bad the few aggregates do that need not look at `__bad`.

    `columns` that say where a row is from tell it of the newest one.
    """
    from pyspark.sql import functions as F  # noqa: N812

    event_us = F.expr(
        "CASE WHEN __bad IS NULL THEN unix_micros(_event_ts) END" if usable_only else "unix_micros(_event_ts)"
    )
    found = [F.count(F.lit(1)).alias("rows"), F.count("__bad").alias("bad"), F.max(event_us).alias("newest")]
    place = next(
        (p for c, p in (("_offset", "struct(_topic, _partition, _offset)"), (FILE, FILE)) if c in columns), None
    )
    if place is not None:
        found.append(F.max_by(F.expr(place), event_us).alias("place"))
    if usable_only:
        found += [F.count(F.when(F.col("__bad") == why, 1)).alias(why) for why in ("undecodable", "future", OUTSIDE)]
    for number, partition in enumerate(partitions):
        topic, _, part = partition.rpartition("-")
        here = (F.col("_partition") == int(part)) & (F.col("_topic") == topic)
        found.append(F.max(F.when(here, event_us)).alias(f"newest{number}"))
    return found


def count_unfit() -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.count(fitting.UNFIT).alias("unfit")


def stats_of(found: Mapping[str, Any], partitions: Mapping[str, int]) -> SourceStats:
    rows, bad = found["rows"] or 0, found["bad"] or 0
    return SourceStats(
        rows,
        rows - bad,
        found["newest"],
        found.get("undecodable") or 0,
        found.get("future") or 0,
        {name: Heard(rows, found[f"newest{n}"]) for n, (name, rows) in enumerate(partitions.items())},
        outside=found.get(OUTSIDE) or 0,
        place=_place_of(found.get("place")),
    )


def _place_of(found: Any) -> str | None:
    """Where a row was read, for people."""
    if found is None or isinstance(found, str):
        return None if found is None else local_name(found)
    return f"{found['_topic']}-{found['_partition']} at offset {found['_offset']}"


def spans_of(timed: DataFrame, jump_us: int, partitioned: bool) -> dict[str, tuple[Span, ...]]:
    """The event times of the newest rows, in stretches shorter than `jump_us`: of each partition, and of all."""
    from pyspark.sql import functions as F  # noqa: N812

    by = "concat(_topic, '-', _partition)" if partitioned else "''"
    times = timed.where("__bad IS NULL").selectExpr(f"{by} AS p", "unix_micros(_event_ts) AS t")
    stretches = times.groupBy("p", F.expr(f"t - pmod(t, {jump_us}L)").alias("b")).agg(
        F.min("t").alias("low"), F.max("t").alias("high"), F.count("*").alias("n")
    )
    nth = stretches.selectExpr("*", "row_number() OVER (PARTITION BY p ORDER BY b DESC) AS nth")
    found: dict[str, list[Span]] = {}
    for row in nth.where(f"nth <= {CONFIRMS}").collect():
        for name in {row["p"], ""}:
            found.setdefault(name, []).append((row["low"], row["high"], row["n"]))
    return {name: tuple(spans) for name, spans in found.items()}
