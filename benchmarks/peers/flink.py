"""Flink: its SQL client, with a cluster in the same JVM. The jars come from PyPI, in a separate environment."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.event_files import LATENESS_S, SIDES
from benchmarks.peers.workloads import GAP_S, JOIN, LENGTH_S, SESSIONS, WITHIN_S, Workload
from slackwater.spark.sessions import spark_jars

VERSION = "2.3.0"
GATEWAY = ("org.apache.flink", "flink-sql-gateway", VERSION)  # the client needs it, and PyPI does not have it
CONNECTOR = (
    "org.apache.flink",
    "flink-sql-connector-kafka",
    "5.0.0-2.2",
)  # the newest version; it works with Flink 2.3
PARALLELISM = 2
SETTINGS = {
    "execution.target": "local",
    "execution.runtime-mode": "streaming",
    "execution.checkpointing.interval": "2 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "parallelism.default": str(PARALLELISM),
    "pipeline.object-reuse": "true",
    "state.backend.type": "rocksdb",
    "table.dml-sync": "true",
    "table.local-time-zone": "UTC",
    "taskmanager.memory.managed.size": "1 gb",
    "taskmanager.numberOfTaskSlots": str(PARALLELISM),
}
_OPENED = (
    "lang",
    "util",
    "net",
    "io",
    "nio",
    "time",
    "text",
    "lang.reflect",
    "util.concurrent",
    "util.concurrent.atomic",
)


def install_flink() -> Path:
    """Return the folder of Flink's jars. Fetch them once, into an environment next to Slackwater's other downloads."""
    home = spark_jars.cache_directory() / "peers" / f"flink-{VERSION}"
    if not list(home.glob("lib/python*/site-packages/pyflink/lib/flink-dist-*.jar")):
        print(f"fetching Flink {VERSION} into {home} (330 MB) …", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True)
        requirement = (
            f"apache-flink-libraries=={VERSION}"  # the jars of apache-flink, whose Python part SQL does not need
        )
        subprocess.run([home / "bin" / "pip", "install", "-q", "--no-deps", requirement], check=True)
    return next(home.glob("lib/python*/site-packages/pyflink"))


def build_sql_script(work: Workload, address: str) -> str:
    """Return the script: tables over topics, and the query."""
    return "\n".join(
        [
            *(_source_table_sql(topic, address) for topic in work.topics),
            _sink_table_sql(work, address),
            _query_sql(work),
        ]
    )


def _source_table_sql(topic: str, address: str) -> str:
    key, value = ("k", "v") if topic not in SIDES else ("order_id", "amount")
    return f"""
CREATE TABLE {topic} (
  {key} STRING, ts BIGINT, {value} BIGINT,
  event_time AS TO_TIMESTAMP_LTZ(ts, 3), WATERMARK FOR event_time AS event_time - INTERVAL '{LATENESS_S}' SECOND
) WITH (
  'connector' = 'kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{address}',
  'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = 'json'
);"""


def _sink_table_sql(work: Workload, address: str) -> str:
    types = dict.fromkeys(work.columns, "BIGINT") | dict.fromkeys(work.times, "TIMESTAMP(3)")
    columns = ", ".join(f"{name} {'STRING' if name in ('k', 'order_id') else kind}" for name, kind in types.items())
    return f"""
CREATE TABLE results ({columns}) WITH (
  'connector' = 'kafka', 'topic' = '{work.output_topic}', 'properties.bootstrap.servers' = '{address}',
  'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{work.name}',
  'properties.transaction.timeout.ms' = '600000', 'properties.compression.type' = 'lz4',
  'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'
);"""


def _query_sql(work: Workload) -> str:
    if work is JOIN:
        return f"""
INSERT INTO results
SELECT o.order_id, o.amount, CAST(o.event_time AS TIMESTAMP(3)), p.amount, CAST(p.event_time AS TIMESTAMP(3))
FROM orders AS o JOIN payments AS p ON o.order_id = p.order_id
AND p.event_time BETWEEN o.event_time AND o.event_time + INTERVAL '{WITHIN_S}' SECOND({len(str(WITHIN_S))});"""
    if work is SESSIONS:
        window = f"SESSION(TABLE events PARTITION BY k, DESCRIPTOR(event_time), INTERVAL '{GAP_S}' SECOND)"
        return f"""
INSERT INTO results
SELECT k, window_start, window_end, COUNT(*), SUM(v), MAX(v)
FROM {window} GROUP BY k, window_start, window_end;"""
    return f"""
INSERT INTO results
SELECT k, window_start, window_end, COUNT(*)
FROM TUMBLE(TABLE events, DESCRIPTOR(event_time), INTERVAL '{LENGTH_S}' SECOND) GROUP BY k, window_start, window_end;"""


def peer_command(work: Workload, address: str, home: Path, heap: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs Flink to the end of the input, and its additional environment variables."""
    jars = install_flink()
    further = [jar for module in (GATEWAY, CONNECTOR) for jar in spark_jars.fetch_jars(*module)]
    home.mkdir(parents=True)
    settings = SETTINGS | {"execution.checkpointing.dir": (home / "checkpoints").as_uri(), "io.tmp.dirs": str(home)}
    (home / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    (home / "log4j2.properties").write_text("rootLogger.level = WARN\n")
    (home / "script.sql").write_text(build_sql_script(work, address))
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
    classes = [
        *sorted(map(str, (jars / "lib").glob("*.jar"))),
        *map(str, (jars / "opt").glob("flink-*.jar")),
    ]
    command = ["java", f"-Xmx{heap}", *opened, f"-Dlog4j.configurationFile={home / 'log4j2.properties'}"]
    command += ["-cp", ":".join([*classes, *map(str, further)]), "org.apache.flink.table.client.SqlClient"]
    return [*command, "embedded", "-hist", str(home / "history"), "-f", str(home / "script.sql")], {
        "FLINK_CONF_DIR": str(home)
    }
