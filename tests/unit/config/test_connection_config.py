"""Test connections of every kind, their keys, and values from environment variables."""

from __future__ import annotations

import copy
import pickle

import pytest
from tests.support.config_mistakes import expect_config_problems, format_case_id, replace_text
from tests.support.invalid_connection_configs import (
    ANY_OFFSETS,
    CASES,
    KAFKA,
    KEYS,
    LATE,
    LETTERS,
    OFFSETS,
    PERSISTED,
    SOURCE,
    TARGET,
    S,
    format_source_keys,
    format_target_section,
)
from tests.support.user_sessions_config import ISSUE

import slackwater as sw

# fmt: on
ENV = {"URL": "postgresql://joe:hunter2@host/db", "PASSWORD": "hunter2"}


@pytest.mark.parametrize("case", CASES, ids=format_case_id)
def test_each_invalid_connection_config_is_refused_with_a_one_line_error(case: tuple[str, ...]) -> None:
    base, old, new, *lines = case
    assert expect_config_problems(replace_text(base, old, new), **ENV) == lines


@pytest.mark.parametrize(
    "content",
    [
        KAFKA,
        PERSISTED,
        replace_text(KAFKA, "kafka_eos", "at_least_once"),
        LATE,
        replace_text(LATE, 'on_error = "dlq"', 'on_error = "drop"'),
    ],
)
def test_base_configs_of_the_invalid_connection_configs_are_valid(content: str) -> None:
    loaded = sw.loads(content, env=ENV)
    assert loaded.transform.window.event_time_column == "_event_ts"  # a Kafka record has a timestamp


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        (OFFSETS, '"latest"'),
        (OFFSETS, '"${START}"'),
        ('"2g"', '"${PASSWORD}"'),
        (TARGET, format_target_section("db", 'table = "public.counts"\n')),
        (TARGET, format_target_section("tables", 'path = "lake/counts"\nmode = "merge"\n')),
        (TARGET, format_target_section("lake", 'path = "out"\nformat = "csv"\n')),
        (LETTERS, '[dead_letter]\nconnection = "bus"\ntopic = "bad"\n'),
        (LETTERS, '[dead_letter]\nconnection = "lake"\npath = "bad"\n'),
        (SOURCE + KEYS, format_source_keys("queues", 'payload_format = "raw"\nmax_messages_per_trigger = 5\n')),
        (SOURCE + KEYS, format_source_keys("streams", 'starting_offsets = "earliest"\nschema = "user STRING"\n')),
        (SOURCE + KEYS, format_source_keys("pub", 'options = { "a.b" = 1 }\n')),
    ],
)
def test_every_kind_of_connection_round_trips_through_toml(old: str, new: str) -> None:
    env = ENV | {"START": "earliest"}
    p = sw.loads(replace_text(PERSISTED if new.startswith("[target]") else KAFKA, old, new), env=env)
    written = sw.to_toml(p)
    assert sw.loads(written, env=env) == p
    assert "hunter2" not in written + repr(p) + str(p)
    assert new != '"${START}"' or 'starting_offsets = "${START}"' in written


def test_starting_offsets_and_spark_settings_are_parsed_verbatim() -> None:
    p = sw.loads(KAFKA, env=ENV)
    assert p.sources[0].starting_offsets == {"orders": {"0": 1200, "1": 7}}
    assert p.spark == {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    in_python = sw.Source(connection="bus", query="orders", starting_offsets={"orders": {0: 1200, 1: 7}})
    assert in_python.starting_offsets == p.sources[0].starting_offsets


def test_passwords_in_urls_are_hidden_in_all_errors() -> None:
    """Neither a message nor a repr shows a password, whatever else is wrong in the config."""
    for case in CASES:
        content = replace_text(*case[:3])
        with pytest.raises(sw.ConfigError) as caught:
            sw.loads(content, env=ENV)
        assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('kind = "postgres"\nurl', 'kind = "${URL}"\nurl', 'connections.db.kind: found "${URL}", which is not a kind of connection; expected one of console, delta, files, '),
        ('connection = "bus"\ntopic', 'connection = "${URL}"\ntopic', 'target.connection: found "${URL}", which is not a connection'),
        (OFFSETS, '"${URL}"', f'{S}.starting_offsets: found "${{URL}}", expected {ANY_OFFSETS}'),
        (OFFSETS, '{ orders = { 0 = "${URL}" } }', f'{S}.starting_offsets.orders.0: found "${{URL}}", expected a whole number'),
        ('"2g"', '["${URL}"]', 'spark."spark.driver.memory": found ["${URL}"], expected a string, a number, true or false'),
        ('["user"]\n[dead', '"${URL}"\n[dead', 'target.key_columns: found "${URL}", expected a list; write ["${URL}"]'),
        ('[state_store]\nkind = "postgres"', '[state_store]\nkind = "${URL}"', 'state_store.kind: found "${URL}", expected "files" or '),
    ],
)  # fmt: skip
def test_variable_under_an_unknown_key_is_not_expanded_in_errors(old: str, new: str, line: str) -> None:
    (first, *_) = expect_config_problems(replace_text(KAFKA, old, new), **ENV)
    assert first.startswith(line)
    assert "hunter2" not in first


# -- the environment


def load_config_with_replaced_text(old: str, new: str, **env: str) -> sw.Pipeline:
    assert old in ISSUE
    return sw.loads(ISSUE.replace(old, new, 1), "p.toml", env)


def test_environment_values_are_hidden_and_written_back_as_variables() -> None:
    p = load_config_with_replaced_text('path = "state"', 'path = "/${ROOT}/s"', ROOT="hunter2")
    assert p.state_store is not None
    assert p.state_store.path == "/hunter2/s"
    assert 'path = "/${ROOT}/s"' in sw.to_toml(p)
    assert "hunter2" not in repr(p) + str(p)
    for copied in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert copied == p
        assert "hunter2" not in repr(copied)


def test_duration_can_come_from_an_environment_variable() -> None:
    p = load_config_with_replaced_text("= 30000 ", '= "${GAP}" ', GAP="30s")
    gap = p.transform.window.gap_ms
    assert p == sw.loads(ISSUE, env={})
    assert (gap, f"{gap}", str(gap)) == (30_000, "30000", "30000")
    assert 'gap = "${GAP}"' in sw.to_toml(p)
    assert pickle.loads(pickle.dumps(p)) == p


def test_dollar_signs_can_be_escaped() -> None:
    p = load_config_with_replaced_text('path = "state"', 'path = "$${A}/$x/a$$b/${B}"', B="b")
    assert p.state_store is not None
    assert p.state_store.path == "${A}/$x/a$$b/b"
    assert sw.loads(sw.to_toml(p), env={"B": "b"}) == p


def test_missing_environment_variable_is_refused_with_a_one_line_error() -> None:
    with pytest.raises(sw.ConfigError) as caught:
        load_config_with_replaced_text("= 30000 ", '= "${GAP}" ')
    assert str(caught.value) == (
        "p.toml: transform.window.gap_ms: environment variable GAP is not set; "
        "set it, or write $${GAP} for the literal text ${GAP}"
    )


@pytest.mark.parametrize(
    ("old", "new", "secret", "line"),
    [
        ('["user_id"]', '"${S}"', "hunter2",
         'transform.window.group_by: found "${S}", expected a list; write ["${S}"]'),
        ('["user_id"]', '["${S}", "${S}"]', "hunter2",
         'transform.window.group_by: "${S}" is listed 2 times; list it once'),
        ("data/users.parquet", "${S}", "hunter2",
         'transform.lookups.users.format: missing, and "${S}" has no known file extension; expected "json" or "csv" or "parquet" or "text"'),
        ("= 30000 ", '= "${S}" ', "77d",
         'transform.window.max_session_duration_ms: found 2h, expected more than gap_ms ("${S}")'),
        ('"user_id STRING, amount', '"${S}, amount', "amount INT",
         'sources[0].schema: a column of "${S}, amount DOUBLE, page_url STRING, event_type STRING, ts TIMESTAMP" is declared twice (Spark ignores the case of names); declare it once'),
        ('as  = "events"', 'as = "${S}"', "user_id",
         'transform.window.aggregations[0].as: "${S}" is already the name of a key; choose another name'),
        ('connection = "lake"\npath', 'connection = "${S}"\npath', "hunter2",
         'target.connection: found "${S}", which is not a connection; expected one of lake'),
        ('kind = "files"\n\n', 'kind = "${S}"\n\n', "hunter2",
         'connections.lake.kind: found "${S}", which is not a kind of connection; expected one of console, delta, files, iceberg, kafka, kinesis, postgres, pubsub, rabbitmq'),
        ('name = "user-sessions"', 'name = "${S}"', "hunter 2",
         'name: found "${S}", expected only letters, digits, ".", "_" and "-", because it names a directory'),
        ('"ts"        #', '"_event_ts"\nevent_time_unit = "${S}" #', "hunter2",
         'transform.window.event_time_unit: found "${S}", expected "s" or "ms" or "us" or "ns"'),
    ],
)  # fmt: skip
def test_secrets_from_the_environment_are_hidden_in_errors(old: str, new: str, secret: str, line: str) -> None:
    with pytest.raises(sw.ConfigError) as caught:
        load_config_with_replaced_text(old, new, S=secret)
    assert f"p.toml: {line}" in caught.value.problems
    if "hunter" in secret or secret == "77d":
        assert secret not in str(caught.value)


def test_missing_protobuf_packages_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    payload_format = 'payload_format = "protobuf"\n'
    config = replace_text(KAFKA, 'payload_format = "json"\nschema = "user STRING, amount DOUBLE"\n', payload_format)
    assert sw.loads(config, env=ENV).sources[0].payload_format == "protobuf"
    problem = (
        'sources[0].payload_format: "protobuf" needs packages that are not installed ({}); '
        "run pip install 'slackwater[protobuf]'"
    )
    monkeypatch.setattr("slackwater.config.source.find_spec", lambda name: None)
    assert expect_config_problems(config, **ENV) == [problem.format("ptars, grpcio-tools")]
    monkeypatch.setattr("slackwater.config.source.find_spec", lambda name: None if name == "ptars" else name)
    assert expect_config_problems(config, **ENV) == [problem.format("ptars")]


def test_object_store_options_are_hidden_and_a_missing_obstore_package_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The options contain secrets, which are never shown."""
    store = KAFKA[KAFKA.index("[state_store]") :]
    object_store = '[state_store]\nkind = "files"\npath = "s3://b/s"\noptions = { secret_access_key = "${PASSWORD}" }\n'
    loaded = sw.loads(replace_text(KAFKA, store, object_store), env=ENV)
    assert loaded.state_store is not None and loaded.state_store.options == {"secret_access_key": "hunter2"}
    assert "hunter2" not in repr(loaded) and "hunter2" not in repr(loaded.state_store)
    monkeypatch.setattr("slackwater.config.target.find_spec", lambda name: None)
    assert expect_config_problems(replace_text(KAFKA, store, object_store), **ENV) == [
        "state_store.path: storing state in an object store requires the package obstore, which is not installed; "
        "run pip install 'slackwater[objects]'"
    ]
