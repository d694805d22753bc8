"""Spark Connect: what is asked of Spark in another way where this process holds no part of it, but a client of a server.

    asked of Spark               classic: its JVM               Connect: its server
    functions, observations      pyspark.sql                    pyspark.sql.connect
    a session of our own         newSession                     another session of the same server, with its settings
    SQL over a DataFrame         a temporary view, at once      sent along with it: a view would be looked up when it runs
    is it there                  the process, its socket        the socket of its server

Plans of Connect are texts for the server until they run: a name in them means what it means then.
"""

from __future__ import annotations

import copy
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

from slackwater.config.sql.lexical import strip_semicolon
from slackwater.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS, TABLES = "slackwater_source_", "slackwater_table_"  # how DataFrames are called that SQL is sent with
_SECONDS = 3.0  # a server that is there answers sooner
_versions: dict[str, str] = {}  # by the id of a session of Connect


def is_connect(spark_object: Any) -> bool:
    """Whether a session or a DataFrame is one of Connect."""
    return type(spark_object).__module__.startswith("pyspark.sql.connect.") or isinstance(spark_object, ConnectTables)


def sql_functions(spark_object: Any) -> Any:
    """PySpark's functions for the columns of a DataFrame, or of a session's. A process may have sessions of both kinds."""
    return import_module("pyspark.sql.connect.functions" if is_connect(spark_object) else "pyspark.sql.functions")


def from_avro(spark_object: Any) -> Any:
    """The same for Avro."""
    module = "pyspark.sql.connect.avro.functions" if is_connect(spark_object) else "pyspark.sql.avro.functions"
    return import_module(module).from_avro


def new_observation(frame: DataFrame) -> Any:
    """Counts what passes a DataFrame."""
    module = "pyspark.sql.connect.observation" if is_connect(frame) else "pyspark.sql"
    return import_module(module).Observation()


# -- sessions ----------------------------------------------------------------------------------------------------------


def new_session(session: Any) -> SparkSession:
    """Another session of the same server, with the settings of this one that a session may have."""
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
            with suppress(Exception):  # of the server, not of a session
                created.conf.set(key, value)
    return created


def retry_policies() -> list[Any]:
    """How often a server that does not answer is asked again: for about half a minute, where PySpark would for ten."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    return [DefaultPolicy(max_retries=9, max_backoff=5000)]


def task_slots(session: SparkSession) -> int:
    """How many tasks the cluster runs at once, as Spark tells."""
    if not is_connect(session):
        return session.sparkContext.defaultParallelism
    return session.range(0, 1 << 16).selectExpr("spark_partition_id() AS p").distinct().count()


def spark_version(session: Any) -> tuple[int, ...]:
    """The line of the Spark that runs the jobs: 4.0.2 is of (4, 0)."""
    if is_connect(session):
        text = _versions.get(session.session_id) or _versions.setdefault(session.session_id, session.version)
    else:
        from pyspark import __version__ as text
    return tuple(int(part) for part in text.split(".")[:2])


def is_on_this_machine(session: SparkSession) -> bool:
    """Whether Spark runs inside one machine, which is this one."""
    return not is_connect(session) and (session.sparkContext.master or "").startswith("local")


def describe_session(session: SparkSession) -> str:
    """Where Spark is, for people."""
    if is_connect(session):
        return f"Spark Connect at {server_endpoint(session)}"
    return str(session.sparkContext.master)


def server_answers(session: Any) -> bool:
    """Whether somebody listens where the server is."""
    host, _, port = server_endpoint(session).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS):
            return True
    except OSError:
        return False


def server_endpoint(session: Any) -> str:
    return str(session.client._builder.endpoint)


def thread_of(session: SparkSession) -> Callable[..., Thread]:
    """What makes a thread that has the caller's settings of jobs."""
    if is_connect(session):
        return Thread  # these belong to the caller's own session
    from pyspark import InheritableThread

    return InheritableThread


def schema_of_ddl(session: SparkSession, text: str) -> StructType:
    """The columns that a text declares, as Spark reads it."""
    if is_connect(session):
        return session.createDataFrame([], text).schema
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(text)
    return schema


def schema_of_json(session: Any, texts: Sequence[str]) -> StructType:
    """The columns that these JSON texts have together, as Spark infers them. Raises StartError where it cannot over Connect."""
    if not is_connect(session):
        return session.read.json(session.sparkContext.parallelize(texts)).schema
    if spark_version(session) < (4, 2):
        raise StartError(
            f"no schema is declared, and over Connect Spark {session.version} cannot infer one from records, Spark 4.2 and later "
            "can; declare it in schema"
        )
    return session.read.json(session.createDataFrame([(text,) for text in texts], "value STRING")).schema


# -- SQL over DataFrames -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConnectTables:
    """A session of Connect, and DataFrames that SQL finds by name beside what is in its catalog: for a batch, whose session is
    the caller's."""

    session: Any
    tables: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def query_frames(session: Any, sql: str, tables: Mapping[str, DataFrame]) -> DataFrame:
    """A DataFrame of SQL that finds these DataFrames by name. They are sent with it, under names that nobody else has."""
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import SubqueryAlias

    if isinstance(session, ConnectTables):
        session, tables = session.session, {**session.tables, **tables}
    frames: dict[str, Any] = dict(tables)
    views: list[Any] = [
        SubqueryAlias(table._plan, f"{ROWS if name == 'source' else TABLES}{uuid.uuid4().hex}")
        for name, table in frames.items()
    ]
    ctes = ", ".join(f"`{name}` AS (SELECT * FROM {v._alias})" for name, v in zip(frames, views, strict=True))
    text = f"WITH {ctes} SELECT * FROM (\n{strip_semicolon(sql)}\n)"
    query: Any = ConnectFrame(_sql_class()(text, None, None, views), session)
    return query


@cache
def _sql_class() -> Any:
    from pyspark.sql.connect.plan import SQL

    class Sql(SQL):
        """PySpark's forgets what is observed in the DataFrames that it was given."""

        @property
        def observations(self) -> Any:
            return {name: one for view in self._views or () for name, one in view.observations.items()}

    return Sql


# -- what a DataFrame is -----------------------------------------------------------------------------------------------


def analyzed_plan(frame: Any) -> str:
    """The analysed plan as text, a node per line."""
    text: str = frame._explain_string(extended=True)
    return text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0].strip()
