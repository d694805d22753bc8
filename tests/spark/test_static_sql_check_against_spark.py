"""Comparison of Spark with `check`, which runs without Spark, on the cases of tests/support/sql_check_cases.py."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from tests.support.case_selection import select_cases
from tests.support.sql_check_cases import ACCEPTED, DDL, NO_DDL, REFUSED, UNREAD, load_sql_case_pipeline

from slackwater.config.pipeline import Pipeline
from slackwater.config.sql import lexer
from slackwater.connectors.lookup_views import LookupViews
from slackwater.errors import StartError
from slackwater.runner import component_factory
from slackwater.spark.sessions.spark_session import private_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def bind_pipeline(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Bind the event time, SQL, keys and aggregations of a pipeline to its columns, as a start does."""
    home = tmp_path_factory.mktemp("cases")
    for name in ("in", "b", "users"):
        (home / name).mkdir()
    (home / "users" / "0.jsonl").write_text('{"id": "u1", "segment": "s", "score": 1.0}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        session = private_session(spark, 2)
        LookupViews(session, load_sql_case_pipeline().transform.lookups, lambda line: None).load()

        def start(spec: Pipeline) -> None:
            sources = [component_factory.create_source(session, spec, i, None) for i in range(len(spec.sources))]
            component_factory.bind_stage(
                spec, session, component_factory.create_empty_frames(session, sources)
            ).end_sql(session)

        yield start


@pytest.mark.parametrize(
    "case", select_cases(ACCEPTED, keep=30), ids=lambda case: " ".join(case.values())[:80] or "as it is"
)
def test_spark_accepts_the_cases_that_check_accepts(bind_pipeline: Any, case: dict[str, str]) -> None:
    bind_pipeline(load_sql_case_pipeline(**case))


@pytest.mark.parametrize(
    ("case", "key", "said"),
    select_cases(REFUSED, keep=30),
    ids=lambda x: " ".join(x.values())[:80] if isinstance(x, dict) else "",
)
def test_spark_refuses_the_cases_that_check_refuses(
    bind_pipeline: Any, case: dict[str, str], key: str, said: str
) -> None:
    with pytest.raises((StartError, Py4JJavaError)) as raised:  # Spark has a separate error for CHAR
        bind_pipeline(load_sql_case_pipeline(**case))
    assert str(raised.value)


@pytest.mark.parametrize(("case", "said"), select_cases(UNREAD, keep=4))
def test_spark_refuses_the_cases_that_check_cannot_parse(bind_pipeline: Any, case: dict[str, str], said: str) -> None:
    with pytest.raises(StartError):
        bind_pipeline(load_sql_case_pipeline(**case))


def test_function_list_matches_the_functions_of_spark(spark: Any) -> None:
    """The lists come from Spark 4.3, whose functions include those of earlier versions."""
    names = {row["function"] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    words = {name for name in names if name.isidentifier()}  # others are operators
    assert words - lexer.FUNCTIONS == set()
    if spark.version.startswith("4.3."):
        assert lexer.FUNCTIONS - words == {"identifier"}  # a clause, written as a call


def test_spark_parses_the_ddl_schemas_that_check_parses(spark: Any) -> None:
    from pyspark.sql.types import StructType

    oldest = spark.version.startswith("4.0.")  # Spark does not know these aliases of TIMESTAMP_NTZ and TIMESTAMP_LTZ
    for text, columns in DDL.items():
        if oldest and "TIME ZONE" in text:
            continue
        parsed: Any = StructType.fromDDL(text)
        assert {f.name: f.dataType.simpleString() for f in parsed.fields} == columns, text
    for text in NO_DDL:
        with pytest.raises(Exception):  # noqa: B017 — whatever Spark raises
            StructType.fromDDL(text)
