"""Spark operations that differ between classic Spark and Spark Connect, where this process is only a client.

    operation                    classic: the JVM               Connect: the server
    functions, observations      pyspark.sql                    pyspark.sql.connect
    a separate session           newSession                     another session of the same server, same settings
    SQL over a DataFrame         a temporary view               the DataFrame's plan is sent with the query
    is Spark alive?              the process, its socket        the socket of the server

A Connect plan only describes a query. The names in it are resolved when the query runs.
"""

from __future__ import annotations

import copy
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

from slackwater.config.sql.lexer import strip_semicolon
from slackwater.core.column_names import quote_identifier
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS, TABLES = "slackwater_source_", "slackwater_table_"  # prefixes for the names of DataFrames that are sent with SQL
_SECONDS = 3.0  # the timeout of a connection attempt to the server
_versions: dict[str, str] = {}  # Spark versions by the id of the Connect session


def is_connect(spark_object: Any) -> bool:
    """Return whether a session or a DataFrame belongs to Spark Connect."""
    return type(spark_object).__module__.startswith("pyspark.sql.connect.") or isinstance(spark_object, ConnectTables)


def sql_functions(spark_object: Any) -> Any:
    """Return the module with PySpark's SQL functions for a DataFrame or session: the classic or the Connect module."""
    return import_module("pyspark.sql.connect.functions" if is_connect(spark_object) else "pyspark.sql.functions")


def from_avro(spark_object: Any) -> Any:
    """Return PySpark's `from_avro` for a DataFrame or session: the classic or the Connect function."""
    module = "pyspark.sql.connect.avro.functions" if is_connect(spark_object) else "pyspark.sql.avro.functions"
    return import_module(module).from_avro


def new_observation(frame: DataFrame) -> Any:
    """Return an observation that collects metrics of a DataFrame while it is processed."""
    module = "pyspark.sql.connect.observation" if is_connect(frame) else "pyspark.sql"
    return import_module(module).Observation()


# -- sessions ----------------------------------------------------------------------------------------------------------


def new_session(session: Any) -> SparkSession:
    """Open another session on the same server, and copy all settings that can be set per session."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    if hasattr(session, "newSession"):
        created: Any = session.newSession()
    else:  # before 4.3
        builder = copy.deepcopy(session.client._builder)
        builder._params.pop("session_id", None)
        created = ConnectSession(connection=builder, userId=session.client._user_id)
    created.client.set_retry_policies(retry_policies())
    settings = created.conf.getAll
    for key, value in session.conf.getAll.items():
        if settings.get(key) != value and key != "spark.app.name":
            with suppress(Exception):  # the setting can be changed only on the server
                created.conf.set(key, value)
    return created


def retry_policies() -> list[Any]:
    """Return retry policies that give up on a server after about half a minute. PySpark's default is ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    return [DefaultPolicy(max_retries=9, max_backoff=5000)]


def count_task_slots(session: SparkSession) -> int:
    """Return the number of tasks that the cluster can run in parallel, according to Spark."""
    if not is_connect(session):
        return session.sparkContext.defaultParallelism
    return session.range(0, 1 << 16).selectExpr("spark_partition_id() AS p").distinct().count()


def spark_version(session: Any) -> tuple[int, ...]:
    """Return the major and minor version of the Spark installation that runs the jobs, such as (4, 0) for 4.0.2."""
    if is_connect(session):
        text = _versions.get(session.session_id) or _versions.setdefault(session.session_id, session.version)
    else:
        from pyspark import __version__ as text
    return tuple(int(part) for part in text.split(".")[:2])


def is_local_spark(session: SparkSession) -> bool:
    """Return whether Spark runs on this machine in local mode."""
    return not is_connect(session) and (session.sparkContext.master or "").startswith("local")


def has_job_properties(session: SparkSession) -> bool:
    """Return whether a property that a thread sets applies to the Spark jobs of the same thread."""
    return not is_connect(session) and os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"


def describe_session(session: SparkSession) -> str:
    """Describe where Spark runs, for messages."""
    if is_connect(session):
        return f"Spark Connect at {server_endpoint(session)}"
    return str(session.sparkContext.master)


def is_server_reachable(session: Any) -> bool:
    """Return whether the server accepts connections."""
    host, _, port = server_endpoint(session).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS):
            return True
    except OSError:
        return False


def server_endpoint(session: Any) -> str:
    return str(session.client._builder.endpoint)


def inheriting_thread_class(session: SparkSession) -> Callable[..., Thread]:
    """Return the thread class whose threads inherit the caller's Spark job settings."""
    if is_connect(session):
        return Thread  # over Connect, job settings belong to the session
    from pyspark import InheritableThread

    return InheritableThread


def parse_ddl_schema(session: SparkSession, text: str) -> StructType:
    """Parse DDL into a schema with Spark's own parser."""
    if is_connect(session):
        return session.createDataFrame([], text).schema
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(text)
    return schema


def infer_json_schema(session: Any, texts: Sequence[str]) -> StructType:
    """Infer the common schema of JSON strings with Spark. Over Connect, raises StartError before Spark 4.2."""
    if not is_connect(session):
        return session.read.json(session.sparkContext.parallelize(texts)).schema
    if spark_version(session) < (4, 2):
        raise StartError(
            f"no schema is declared, and Spark {session.version} cannot infer one from records over Spark Connect; "
            'set "schema" of the source, or use Spark 4.2 or later',
            Topic.SPARK_CONNECT,
        )
    return session.read.json(session.createDataFrame([(text,) for text in texts], "value STRING")).schema


# -- SQL over DataFrames -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConnectTables:
    """A Connect session with DataFrames that its SQL can refer to by name, like catalog tables.

    `sw.batch` uses this class, because its queries run in the caller's session.
    """

    session: Any
    tables: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def query_frames(session: Any, sql: str, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of a SQL query over DataFrames, for Spark Connect.

    The plans of the DataFrames are sent with the query, under unique names.

    Args:
        session: A Connect session, or `ConnectTables`.
        sql: The query.
        tables: The DataFrames, by the name under which the query refers to them.
    """
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import SubqueryAlias

    if isinstance(session, ConnectTables):
        session, tables = session.session, {**session.tables, **tables}
    frames: dict[str, Any] = dict(tables)
    views: list[Any] = [
        SubqueryAlias(table._plan, f"{ROWS if name == 'source' else TABLES}{uuid.uuid4().hex}")
        for name, table in frames.items()
    ]
    ctes = ", ".join(
        f"{quote_identifier(name)} AS (SELECT * FROM {v._alias})" for name, v in zip(frames, views, strict=True)
    )
    text = f"WITH {ctes} SELECT * FROM (\n{strip_semicolon(sql)}\n)"
    query: Any = ConnectFrame(_sql_class()(text, None, None, views), session)
    return query


@cache
def _sql_class() -> Any:
    from pyspark.sql.connect.plan import SQL

    class Sql(SQL):
        """PySpark's SQL plan node, corrected so that it keeps the observations of the DataFrames that it refers to."""

        @property
        def observations(self) -> Any:
            return {name: observation for view in self._views or () for name, observation in view.observations.items()}

    return Sql


# -- plans -------------------------------------------------------------------------------------------------------------


def analyzed_plan(frame: Any) -> str:
    """Return the analyzed plan of a DataFrame as text, one node per line."""
    text: str = frame._explain_string(extended=True)
    return text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0].strip()
