"""Values from the environment and passwords are masked in all output. Their names are shown instead."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import slackwater as sw
from slackwater import secret_masking
from slackwater.cli.main import main
from slackwater.config.toml import loads
from slackwater.errors import ConfigError, StartError

TOML = """
name = "p"
[connections.lake]
kind = "files"
[[sources]]
name = "clicks"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, token STRING, ts TIMESTAMP"
[transform]
sql = "SELECT user, _event_ts FROM source WHERE token = '${API_TOKEN}'"
[transform.window]
kind = "session"
gap_ms = "2s"
max_session_duration_ms = "1h"
event_time_column = "ts"
group_by = ["user"]
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
"""
SECRET = "s3cr3t-t0ken-value"


@pytest.fixture(autouse=True)
def reset_secret_masking() -> Iterator[None]:
    secret_masking.forget_secrets()
    yield
    secret_masking.forget_secrets()


@pytest.mark.parametrize("command", [["explain"], ["check"], ["plan"], ["plan", "--json"], ["why"]])
def test_commands_mask_secrets_from_the_environment(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("API_TOKEN", SECRET)
    Path("p.toml").write_text(TOML)
    monkeypatch.setattr("sys.argv", ["slackwater", command[0], "p.toml", *command[1:]])
    with pytest.raises(SystemExit):
        main()
    output = "".join(capsys.readouterr())
    assert SECRET not in output
    if command == ["explain"]:
        assert "WHERE token = '${API_TOKEN}'" in output


def test_errors_and_log_lines_mask_secrets_in_quoted_sql(caplog: pytest.LogCaptureFixture) -> None:
    from slackwater.engine import epoch_driver  # noqa: F401  # installs the filter of the log

    loads(TOML, env={"API_TOKEN": SECRET})
    quoted = f"[PARSE_SYNTAX_ERROR] near '{SECRET}'"
    assert str(StartError(quoted)) == "[PARSE_SYNTAX_ERROR] near '${API_TOKEN}'"
    assert ConfigError([quoted]).problems == ("[PARSE_SYNTAX_ERROR] near '${API_TOKEN}'",)
    with caplog.at_level(logging.INFO, "slackwater"):
        logging.getLogger("slackwater").info("it said: %s", quoted)
        try:
            raise ValueError(quoted)
        except ValueError:
            logging.getLogger("slackwater").exception("failed")
    assert SECRET not in caplog.text
    assert "it said: [PARSE_SYNTAX_ERROR] near '${API_TOKEN}'" in caplog.text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://u:S3cr3tPassw0rd@h/db", "S3cr3tPassw0rd"),
        ("postgresql://u:S3cr3t/Passw0rd@h/db", "S3cr3t/Passw0rd S3cr3t Passw0rd@h"),
        ("postgresql://u:S3cr3t@Passw0rd@h/db", "S3cr3t@Passw0rd S3cr3t Passw0rd@h"),
        ("postgresql+psycopg://u:S3cr3tPassw0rd@h/db", "S3cr3tPassw0rd"),
        ("postgresql://h/db?user=u&password=S3cr3tPassw0rd&x=1", "S3cr3tPassw0rd"),
        ("host=h password=S3cr3tPassw0rd user=u", "S3cr3tPassw0rd"),
        ("host=h password='S3cr3t Passw0rd' user=u", "S3cr3t Passw0rd"),
        ("postgresql://u:S3cr3t%50assw0rd@h/db", "S3cr3tPassw0rd"),
    ],
)
def test_the_password_in_a_url_is_masked(url: str, message: str) -> None:
    sw.PostgresConnection(url=url)
    shown = secret_masking.mask_secrets(f"authentication failed: {message} in {url}")
    assert "S3cr3t" not in shown
    assert "assw0rd" not in shown


def test_settings_with_secret_names_are_masked() -> None:
    options = {"kafka.sasl.jaas.config": "x password='S3cr3tPassw0rd';", "kafka.ssl.key.password": "An0therOne!"}
    sw.KafkaConnection(bootstrap_servers="broker:9092", options={**options, "kafka.client.id": "not-a-secret"})
    shown = secret_masking.mask_secrets(f"{options} S3cr3tPassw0rd An0therOne! not-a-secret broker:9092")
    assert "S3cr3t" not in shown
    assert "An0ther" not in shown
    assert "not-a-secret broker:9092" in shown


@pytest.mark.parametrize("value", ["", "5", "30s", "1000", "true", "dev", "127.0.0.1:9092"])
def test_common_short_values_are_not_masked(value: str) -> None:
    secret_masking.remember_secret(value, "${X}")
    assert secret_masking.mask_secrets(f"epoch 5 of 1000, {value}") == f"epoch 5 of 1000, {value}"


def test_a_short_secret_is_masked_only_as_a_whole_word() -> None:
    secret_masking.remember_secret("hush", "${X}")
    assert secret_masking.mask_secrets("hush, hushed 'hush' brushhush") == "${X}, hushed '${X}' brushhush"


def test_longer_secrets_are_masked_first_and_pipeline_names_are_not_secret() -> None:
    secret_masking.remember_secret("abcdefgh", "${A}")
    secret_masking.remember_secret("abcdefghijkl", "${B}")
    assert secret_masking.mask_secrets("abcdefghijkl abcdefgh") == "${B} ${A}"
    loads(TOML.replace('name = "p"', 'name = "${TEAM}-clicks"'), env={"API_TOKEN": SECRET, "TEAM": "payments"})
    assert secret_masking.mask_secrets("payments-clicks") == "payments-clicks"
