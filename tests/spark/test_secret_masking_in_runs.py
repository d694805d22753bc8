"""Secrets of a config do not appear in files, output or responses of a real run, also if the run fails."""

from __future__ import annotations

import http.client
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater import metrics, secret_masking
from slackwater.errors import SlackwaterError
from slackwater.query import server

SECRETS = {"API_TOKEN": "s3cr3t-t0ken-value", "SALT": "pepper&salt 77", "STORE_KEY": "Kx9/abcDEF+12345678"}
TOML = """
name = "guarded"
[connections.lake]
kind = "files"
[[sources]]
name = "clicks"
connection = "lake"
query = "{home}/in/*.jsonl"
format = "json"
schema = "user STRING, token STRING, ts TIMESTAMP, v STRING"
[transform]
on_error = "dlq"
sql = \"\"\"SELECT sha2(concat(user, '${{SALT}}'), 256) AS user, {cast} AS v, _event_ts FROM source
WHERE token = '${{API_TOKEN}}'\"\"\"
[transform.window]
kind = "session"
gap_ms = "2s"
max_session_duration_ms = "1h"
event_time_column = "ts"
late_data = "dlq"
group_by = ["user"]
[[transform.window.aggregations]]
agg = "sum"
column = "v"
as = "total"
[target]
connection = "lake"
path = "{home}/out"
format = "json"
[dead_letter]
connection = "lake"
path = "{home}/letters"
format = "json"
[state_store]
kind = "files"
path = "{home}/state"
[spark]
"spark.hadoop.fs.s3a.secret.key" = "${{STORE_KEY}}"
"""


@pytest.fixture(autouse=True)
def reset_secret_masking() -> Iterator[None]:
    secret_masking.forget_secrets()
    yield
    secret_masking.forget_secrets()


def find_secrets(text: str) -> list[str]:
    return [name for name, value in SECRETS.items() if value in text]


def run_and_collect_output(spark: Any, home: Path, cast: str, said: list[str]) -> None:
    pipeline = sw.loads(TOML.format(home=home, cast=cast), env=SECRETS)
    try:
        sw.run(
            pipeline,
            available_now=True,
            flush=True,
            spark=spark,
            on_notice=lambda level, line: said.append(line),
            on_status=lambda status: said.append(repr(status)),
        )
    except SlackwaterError as error:
        said.append(str(error))
        said.append("".join(traceback.format_exception(error)))


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_run_does_not_expose_secrets_in_files_logs_or_responses(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    token, rows = SECRETS["API_TOKEN"], ""
    for i in range(20):
        rows += f'{{"user": "u{i % 3}", "token": "{token}", "ts": "2024-03-01T10:00:{i:02d}Z", "v": "{i}"}}\n'
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text(rows + '{"user": "u1", "ts": "gibberish"}\n{not json\n')
    said: list[str] = []
    with caplog.at_level(logging.DEBUG, "slackwater"):
        run_and_collect_output(spark, tmp_path, "CAST(v AS BIGINT)", said)
        assert list((tmp_path / "out").iterdir()), said
        for wrong in ("CAST(concat(v, '${SALT}') AS BIGINT)", "nowhere", "CAST(v AS"):
            (tmp_path / "in" / f"{abs(hash(wrong))}.jsonl").write_text(rows)
            before = len(said)
            run_and_collect_output(spark, tmp_path, wrong, said)
            assert len(said) > before
    view = sw.open_state(str(tmp_path / "state"))
    serving, counting = server.serve_state(view, 0), metrics.serve_metrics(metrics.Metrics(), 0)
    try:
        for port, paths in ((serving.port, ("/", "/scan", f"/scan?where=n={token}")), (counting.port, ("/metrics",))):
            for path in paths:
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                client.request("GET", path)
                said.append(client.getresponse().read().decode())
                client.close()
    finally:
        serving.stop()
        counting.stop()
    printed = capfd.readouterr()
    assert find_secrets("\n".join(said)) == []
    assert find_secrets(caplog.text) == []
    assert find_secrets(printed.out + printed.err) == []
    assert any("${" in line for line in said), "an error that quotes the SQL shows the name"
    written = [p for p in tmp_path.rglob("*") if p.is_file() and p.parent.name not in ("in", "letters")]
    assert len(written) > 5
    assert [(p, secrets) for p in written if (secrets := find_secrets(p.read_bytes().decode("latin-1")))] == []
