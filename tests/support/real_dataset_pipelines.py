"""Define pipelines over files of real events, and their known results."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import polars as pl

PARTS = 12
HOURLY_DELETED = [
    1761, 16208, 14543, 13101, 12040, 6399, 9036, 11409, 11616, 17509, 19406, 16284,
    18672, 30520, 18025, 26399, 24759, 19634, 17345, 19305, 22265, 16394, 16379, 15289,
]  # fmt: skip
WIKI = """
format = "json"
schema = "time STRING, user STRING, page STRING, channel STRING, added BIGINT, deleted BIGINT"
"""
COLLEGE = """
format = "csv"
schema = "source INT, target INT, sent BIGINT"
options = { sep = " ", header = "true", enforceSchema = "true" }
"""
IBIS = """
format = "csv"
schema = "seq INT, sha STRING, author_time BIGINT, commit_time BIGINT, author_id STRING, nparents INT"
options = { sep = "\\t", header = true }
"""
LOG = """
format = "text"
"""
APACHE_TIME = r"to_timestamp(regexp_extract(value, '\\\\[(.+?)\\\\]', 1), 'dd/MMM/yyyy:HH:mm:ss Z')"
APACHE_SQL = r"SELECT regexp_extract(value, '^(\\\\S+)', 1) AS ip, _event_ts FROM source"
PIPELINES: dict[str, dict[str, Any]] = {
    "wiki-hourly": {
        "file": "wikiticker-2015-09-12.json.gz",
        "source": WIKI,
        "window": 'kind = "tumbling"\nduration_ms = "1h"\nmax_groups_per_window = 1\nevent_time_column = "time"',
        "extra": '[[transform.window.aggregations]]\nagg = "sum"\ncolumn = "deleted"\nas = "deleted"',
    },
    "wiki-hopping": {
        "file": "wikiticker-2015-09-12.json.gz",
        "source": WIKI,
        "window": 'kind = "hopping"\nduration_ms = "1h"\nhop_ms = "15m"\nmax_groups_per_window = 1\nevent_time_column = "time"',
    },
    "wiki-sessions": {
        "file": "wikiticker-2015-09-12.json.gz",
        "source": WIKI,
        "window": 'kind = "session"\ngap_ms = "30m"\nmax_session_duration_ms = "30d"\ngroup_by = ["user"]\nevent_time_column = "time"',
    },
    "college": {
        "file": "CollegeMsg.txt",
        "header": 1,
        "source": COLLEGE,
        "window": 'kind = "session"\ngap_ms = "30m"\nmax_session_duration_ms = "30d"\ngroup_by = ["source"]\n'
        'event_time_column = "sent"\nevent_time_unit = "s"',
    },
    "apache": {
        "file": "apache_logs.log",
        "source": LOG,
        "sql": APACHE_SQL,
        "window": 'kind = "session"\ngap_ms = "30m"\nmax_session_duration_ms = "30d"\ngroup_by = ["ip"]\nlateness_ms = "1m"\n'
        f'event_time_column = "{APACHE_TIME}"',
    },
    "ibis": {
        "file": "ibis_commits.tsv.gz",
        "header": 1,
        "source": IBIS,
        "window": 'kind = "session"\ngap_ms = "30m"\nmax_session_duration_ms = "30d"\ngroup_by = ["author_id"]\nlateness_ms = "300d"\n'
        'event_time_column = "author_time"\nevent_time_unit = "s"',
    },
}


def write_dataset_config(name: str, home: Path, query: str, limit: str = "") -> Path:
    """Write the pipeline as a TOML file, and return its path."""
    p = PIPELINES[name]
    sql = f'sql = "{p["sql"]}"' if "sql" in p else ""
    path = home / f"{name}.toml"
    path.write_text(
        f"""name = "{name}"

[connections.lake]
kind = "files"

[[sources]]
name = "events"
connection = "lake"
query = "{query}"
{p["source"]}{limit}

[transform]
{sql}

[transform.window]
{p["window"]}

[[transform.window.aggregations]]
agg = "count"
as = "n"
{p.get("extra", "")}

[target]
connection = "lake"
path = "{home}/out"

[state_store]
kind = "files"
path = "{home}/state"
"""
    )
    return path


def read_result_frame(home: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(p) for p in sorted((home / "out").glob("*.parquet"))])


def split_into_input_files(file: Path, into: Path, header: int) -> None:
    """Split the lines of a file into twelve files of the same kind, in order, with ascending modification times."""
    into.mkdir()
    packed = file.suffix == ".gz"
    lines = (gzip.decompress(file.read_bytes()) if packed else file.read_bytes()).splitlines(keepends=True)
    head, body = lines[:header], lines[header:]
    size = -(-len(body) // PARTS)
    for n in range(PARTS):
        content = b"".join([*head, *body[n * size : (n + 1) * size]])
        part = into / f"{n:02}{''.join(file.suffixes[-2:]) if packed else file.suffix}"
        part.write_bytes(gzip.compress(content) if packed else content)
        os.utime(part, (1_500_000_000 + n, 1_500_000_000 + n))


def check_known_result(name: str, frame: pl.DataFrame) -> None:
    """Compare the result of a pipeline with its known result."""
    n = frame["n"]
    match name:
        case "wiki-hourly":
            assert frame.sort("window_start")["deleted"].to_list() == HOURLY_DELETED
            assert n.sum() == 39_244
        case "wiki-hopping":
            assert (frame.height, n.sum()) == (96, 156_976)
        case "wiki-sessions":
            assert (frame.height, n.max(), (n == 1).sum(), n.sum()) == (16_097, 3_385, 12_315, 39_244)
        case "college":
            assert (frame.height, n.max(), (n == 1).sum(), n.sum()) == (25_244, 165, 15_780, 59_835)
        case "apache":
            assert (frame.height, n.sum()) == (3_052, 10_000)
        case "ibis":
            assert (frame.height, n.sum()) == (7_453, 10_178)
