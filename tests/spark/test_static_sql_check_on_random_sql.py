"""Random SQL texts: `check` accepts every text that a start accepts, and results do not depend on batches.

    SLACKWATER_SQL_TEXTS=2000 SLACKWATER_SQL_RUNS=60 SLACKWATER_SQL_REPORT=report.txt pytest tests/spark/test_static_sql_check_on_random_sql.py

The report lists the texts that a start refuses and `check` accepts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import random_transform_sql
from tests.support.case_selection import exhaustive
from tests.support.random_transform_sql import LOOKUP, SCHEMA, SqlText

import slackwater as sw
from slackwater.config import static_sql_check
from slackwater.config.stage import InputPath
from slackwater.errors import SlackwaterError, StartError
from slackwater.spark.analysis import sql_analysis
from slackwater.spark.sessions.spark_session import private_session
from slackwater.testing import LocalPipeline

pytestmark = pytest.mark.spark

TEXTS = int(os.environ.get("SLACKWATER_SQL_TEXTS", "60"))
RUNS = int(os.environ.get("SLACKWATER_SQL_RUNS", "2"))
REPORT = os.environ.get("SLACKWATER_SQL_REPORT")
BEGIN = int(os.environ.get("SLACKWATER_SQL_SEED", "0"))
USERS = '{"id": "a", "c": "DE", "score": 2.0}\n{"id": "b", "c": "FR", "score": 0.5}\n'
ROWS = [
    {"u": "ab"[i % 2], "n": i, "v": i / 2, "ok": i % 3 > 0, "ts": f"2024-01-01T00:0{i}:00Z", "day": "2024-01-01", "tags": ["a", "b"],
     "m": {"a": i}, "p": {"city": "x", "zip": i}, "like": 2, "when": "w", "on": True, "order": i, "limit": 1, "left": "l",
     "date": "2024-01-02", "minus": 3, "window": "z", "values": 4, "end": 5, "group": "g"}
    for i in range(1, 5)
]  # fmt: skip


def pipeline_with_sql(sql: str, home: Path) -> sw.Pipeline:
    return sw.Pipeline(
        name="texts",
        connections={"lake": sw.FilesConnection()},
        sources=[sw.Source(name="a", connection="lake", query="in/*.jsonl", format="json", schema=SCHEMA)],
        transform=sw.Transform(
            sql=sql,
            on_error="fail",
            lookups={"users": sw.Lookup(connection="lake", query=str(home / "users"), format="json", schema=LOOKUP)},
        ),
        target=sw.Target(connection="lake", path="out"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


@pytest.fixture
def folder_with_lookup(tmp_path: Path) -> Path:
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "0.jsonl").write_text(USERS)
    return tmp_path


@pytest.fixture
def find_start_error(spark: Any, folder_with_lookup: Path) -> Iterator[Any]:
    """Return a function that gives the reason why a start refuses the SQL of a pipeline, or None."""
    session = private_session(spark, 2)
    session.read.schema(LOOKUP).json(str(folder_with_lookup / "users")).localCheckpoint().createOrReplaceTempView(
        "users"
    )
    rows = session.createDataFrame([], SCHEMA)

    def refused(spec: sw.Pipeline) -> str | None:
        try:
            sql_analysis.check_sql(session, spec, InputPath("a", "a"), rows)
        except StartError as error:
            return str(error)
        return None

    tables = session.catalog.listTables()
    yield refused
    assert session.catalog.listTables() == [
        t for t in session.catalog.listTables() if t in tables or t.name == "source"
    ]


def count_result_rows(spark: Any, spec: sw.Pipeline, batches: list[list[dict[str, Any]]]) -> Counter[str]:
    with LocalPipeline(spec, session=spark, capture_losses=False) as test:
        for batch in batches:
            test.pipe(batch)
        rows = test.result().rows
    return Counter(repr(sorted((k, v) for k, v in r.items() if k != "_epoch")) for r in rows)


@exhaustive(beside="test_static_sql_check_against_spark.py::test_spark_accepts_the_cases_that_check_accepts")
@pytest.mark.semantics("row-wise-sql")
def test_check_accepts_all_random_sql_that_a_start_accepts(
    spark: Any, find_start_error: Any, folder_with_lookup: Path
) -> None:
    """`check` accepts all SQL that a start accepts, and it gives the same rows in one batch as row by row."""
    counts, alarms, misses, accepted = Counter[str](), list[str](), list[str](), list[SqlText]()
    for seed in range(BEGIN, BEGIN + TEXTS):
        text = random_transform_sql.draw_sql_text(seed)
        try:
            spec = pipeline_with_sql(text.sql, folder_with_lookup)
        except SlackwaterError:  # an empty text is not a query
            counts["no SQL"] += 1
            continue
        checked, why = static_sql_check.check_sql(spec), find_start_error(spec)
        assert why is None or "\n" not in why, why
        refuses = "refuses" if checked.problems else "accepts"
        counts[f"{text.family}: check {refuses}, start {'accepts' if why is None else 'refuses'}"] += 1
        counts["not checked"] += bool(checked.unchecked)
        if why is None and checked.problems:
            alarms.append(f"{seed}: {text.sql!r}: {checked.problems}")
        if why is None and not checked.problems:
            accepted.append(text)
        if why is not None and not checked.problems:
            misses.append(f"{seed}: {text.sql!r}: {why[:160]}; {checked.unchecked}")
    ran, unlike = 0, list[str]()
    for text in accepted[:: max(1, len(accepted) // max(RUNS, 1))][:RUNS]:
        spec = pipeline_with_sql(text.sql, folder_with_lookup)
        try:
            answers = [count_result_rows(spark, spec, b) for b in ([ROWS], [[r] for r in ROWS])]
        except SlackwaterError as error:  # a type without target support, or a cast that fails
            counts[f"not run: {type(error).__name__}"] += 1
            continue
        ran += 1
        if answers[0] != answers[1]:
            unlike.append(f"{text.sql!r}: {answers}")
    if REPORT:
        lines = [f"{name}: {count}" for name, count in sorted(counts.items())]
        lines += [
            f"ran {ran}, differ {len(unlike)}",
            f"\nfalse alarms {len(alarms)}",
            *alarms,
            f"\nmisses {len(misses)}",
            *misses,
        ]
        Path(REPORT).write_text("\n".join([*lines, "\ndiffer", *unlike]) + "\n")
    assert not alarms
    assert not unlike
    assert accepted
    assert ran or not RUNS
