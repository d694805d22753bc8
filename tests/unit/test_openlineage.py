"""Run events of OpenLineage, sent by the client's transports to a file and to a receiver on loopback."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import event_v2
from tests.support.command import GOOD
from tests.support.http_post_recorder import HttpPostRecorder
from tests.support.local_pipeline_script import MicroBatch, build_pipeline, run_local_script

from slackwater import observe, secret_masking
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target
from slackwater.config.toml import loads
from slackwater.config.window import Aggregation, Window
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.schema import Field
from slackwater.engine.observer import RunSchema, Status
from slackwater.errors import EpochError, StartError
from slackwater.observe import openlineage

WINDOW = Window(
    kind="tumbling",
    duration_ms=1000,
    event_time_column="ts",
    group_by=["k"],
    max_groups_per_window=100,
    aggregations=[Aggregation(agg="count", as_="n")],
)
COLUMNS = RunSchema(
    {"a": [Field("k", "string"), Field("ts", "timestamp")]}, {"transform": [Field("k", "string"), Field("n", "bigint")]}
)
Event = dict[str, Any]


@pytest.fixture(autouse=True)
def reset_lineage_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # a directory without openlineage.yml
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("slackwater.observe.openlineage.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("slackwater.observe.openlineage.LAST_SECONDS", 60.0)
    monkeypatch.setattr(
        "slackwater.observe.openlineage.AWAY_SECONDS", 60.0
    )  # a slow machine is not an unreachable backend
    for name in [n for n in os.environ if n.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    yield
    for name in [n for n in os.environ if n.startswith("OPENLINEAGE__")]:
        del os.environ[name]  # the client sets some variables from others
    secret_masking.forget_secrets()


@pytest.fixture
def read_file_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Event]]:
    """Return a function that reads the events of the file transport."""
    path = tmp_path / "events.json"
    config = {"transport": {"type": "file", "log_file_path": str(path), "append": True}}
    (tmp_path / "lineage.yml").write_text(json.dumps(config))
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(tmp_path / "lineage.yml"))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log_lines() -> list[str]:
    return []


def start_lineage_observer(log_lines: list[str], pipeline: Pipeline | None = None) -> Any:
    observer = observe.open_lineage(lambda level, line: log_lines.append(f"{level}: {line}"))
    observer.on_start(pipeline or files_pipeline())
    observer.on_schema(COLUMNS)
    return observer


def files_pipeline() -> Pipeline:
    pipeline = build_pipeline(WINDOW, ["a"])
    connections = loads(GOOD, "p.toml", {}).connections
    source = Source(
        name="a", connection="lake", query="/data/in/*.jsonl", format="json", schema="k STRING, ts TIMESTAMP"
    )
    return pipeline.model_copy(
        update={
            "connections": connections,
            "sources": (source,),
            "target": Target(connection="lake", path="/data/out"),
            "dead_letter": Target(connection="lake", path="/data/letters"),
        }
    )


def collect_run_statuses() -> list[Status]:
    script = [MicroBatch({"a": [{"ts": t + i, "k": "x"} for i in range(3)]}) for t in (0, 5_000_000, 90_000_000)]
    return run_local_script(WINDOW, script, schema={"k": "string"}, sources=("a",)).statuses


def count_reported_rows(sent: list[Event], side: str, which: int = 0) -> int:
    kind = side.removesuffix("s")
    parts = [e[side][which][f"{kind}Facets"].get(f"{kind}Statistics", {}) for e in sent if e[side]]
    return sum(p.get("rowCount", 0) for p in parts)


def test_a_run_is_reported_from_its_start_to_its_end(read_file_events: Any, log_lines: list[str]) -> None:
    observer, run_statuses = start_lineage_observer(log_lines), collect_run_statuses()
    for status in run_statuses:
        observer.on_commit(status)
    observer.on_end(None)
    sent = read_file_events()
    states = [e["eventType"] for e in sent]
    assert (states[0], states[-1]) == ("START", "COMPLETE")
    assert set(states[1:-1]) == {"RUNNING"}
    assert len({e["run"]["runId"] for e in sent}) == 1
    assert {(e["job"]["namespace"], e["job"]["name"]) for e in sent} == {("slackwater", run_statuses[0].pipeline)}
    assert sent[-1]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert [e["eventTime"] for e in sent] == sorted(e["eventTime"] for e in sent)
    assert count_reported_rows(sent, "inputs") == 9 == run_statuses[-1].counters.rows_in
    assert count_reported_rows(sent, "outputs") == run_statuses[-1].counters.rows_emitted > 0
    assert [(d["namespace"], d["name"]) for d in sent[-1]["inputs"]] == [("file", "/data/in")]
    assert [(d["namespace"], d["name"]) for d in sent[-1]["outputs"]] == [
        ("file", "/data/out"),
        ("file", "/data/letters"),
    ]


def test_schema_facets_list_the_columns_read_and_written(read_file_events: Any, log_lines: list[str]) -> None:
    observer = start_lineage_observer(log_lines)
    observer.on_commit(collect_run_statuses()[0])
    observer.on_end(None)
    last = read_file_events()[-1]
    shown = [
        [(f["name"], f["type"]) for f in d["facets"]["schema"]["fields"]] for d in [*last["inputs"], *last["outputs"]]
    ]
    assert shown == [
        [("k", "string"), ("ts", "timestamp")],
        [("k", "string"), ("n", "bigint")],
        [(f.name, f.type) for f in LETTER],
    ]


def test_every_commit_is_in_exactly_one_event(read_file_events: Any, log_lines: list[str]) -> None:
    observer, run_statuses = start_lineage_observer(log_lines), collect_run_statuses()
    for status in run_statuses:
        observer.on_commit(status)
    observer.on_end(None)
    spans = [e["run"]["facets"]["slackwater_commits"] for e in read_file_events() if e["eventType"] == "RUNNING"]
    covered = Counter(n for s in spans for n in range(s["firstEpoch"], s["lastEpoch"] + 1))
    assert covered == Counter(s.epoch for s in run_statuses)
    assert spans[-1]["watermark"] == run_statuses[-1].watermark_us


def test_restarted_run_reports_only_its_own_rows(read_file_events: Any, log_lines: list[str]) -> None:
    """The counters of the state continue, but a run reports only its own rows."""
    first = collect_run_statuses()
    observer = start_lineage_observer(log_lines)
    observer.on_commit(replace(first[1], phases={}, emitted=0))  # the status that a start reports for an existing state
    for status in first[2:]:
        observer.on_commit(status)
    observer.on_end(None)
    assert count_reported_rows(read_file_events(), "inputs") == 3


def test_failure_event_masks_secrets_in_its_message(read_file_events: Any, log_lines: list[str]) -> None:
    secret_masking.remember_secret("hunter-22-hunter")
    observer = start_lineage_observer(log_lines)
    observer.on_end(EpochError("clicks: epoch 3 was not committed: no login with hunter-22-hunter"))
    last = read_file_events()[-1]
    assert last["eventType"] == "FAIL"
    error = last["run"]["facets"]["errorMessage"]
    assert error["message"] == "clicks: epoch 3 was not committed: no login with ***"
    assert "stackTrace" not in error


def test_events_conform_to_the_openlineage_specification(read_file_events: Any, log_lines: list[str]) -> None:
    """The client's classes implement the specification. They accept all events, and every facet names its schema."""
    observer = start_lineage_observer(log_lines)
    for status in collect_run_statuses():
        observer.on_commit(status)
    observer.on_end(StartError("no"))
    for e in read_file_events():
        assert e["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
        assert e["producer"].startswith("urn:slackwater:")
        event_v2.RunEvent(
            eventTime=e["eventTime"],
            run=event_v2.Run(e["run"]["runId"]),
            job=event_v2.Job(**{k: v for k, v in e["job"].items() if k != "facets"}),
            eventType=event_v2.RunState(e["eventType"]),
        )
        facets = [*e["run"]["facets"].values(), *e["job"]["facets"].values()]
        for data in [*e["inputs"], *e["outputs"]]:
            assert set(data) <= {"namespace", "name", "facets", "inputFacets", "outputFacets"}
            for key in set(data) & {"facets", "inputFacets", "outputFacets"}:
                facets += data[key].values()
        assert all(f["_producer"] and f["_schemaURL"] for f in facets)


class LineageReceiver(HttpPostRecorder):
    """A lineage backend that stores the events it accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.events = list[Event]()

    def record_request(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        if self.status == 200:
            self.events.append({**json.loads(body), "path": path, "auth": headers.get("Authorization")})


@pytest.fixture
def lineage_receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[LineageReceiver]:
    server = LineageReceiver()
    monkeypatch.setenv("OPENLINEAGE_URL", server.url)
    with server.serve_in_background():
        yield server


def test_the_environment_variables_of_openlineage_are_used(
    lineage_receiver: LineageReceiver, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "sesame-open-42")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
    observer = start_lineage_observer(log_lines)
    observer.on_end(None)
    assert [e["eventType"] for e in lineage_receiver.events] == ["START", "COMPLETE"]
    assert {e["path"] for e in lineage_receiver.events} == {"/api/v1/lineage"}
    assert {e["auth"] for e in lineage_receiver.events} == {"Bearer sesame-open-42"}
    assert {e["job"]["namespace"] for e in lineage_receiver.events} == {"shop"}
    assert secret_masking.mask_secrets("with sesame-open-42") == "with ***"
    assert len(log_lines) == 1


def test_unsent_events_are_sent_later_and_reported_once(
    lineage_receiver: LineageReceiver, log_lines: list[str]
) -> None:
    lineage_receiver.status = 400
    observer, run_statuses = start_lineage_observer(log_lines), collect_run_statuses()
    for status in run_statuses[:-1]:
        observer.on_commit(status)
        lineage_receiver.wait_for_requests(2)
    lineage_receiver.status = 200
    lineage_receiver.wait_for_requests(2)
    observer.on_commit(run_statuses[-1])
    observer.on_end(None)
    sent = lineage_receiver.events
    assert [e["eventType"] for e in sent if e["eventType"] != "RUNNING"] == ["START", "COMPLETE"]
    assert sent[0]["eventType"] == "START"
    assert count_reported_rows(sent, "inputs") == run_statuses[-1].counters.rows_in
    assert count_reported_rows(sent, "outputs") == run_statuses[-1].counters.rows_emitted
    assert [line.partition(":")[0] for line in log_lines[1:]] == ["warning", "info"]
    assert "400 Client Error" in log_lines[1]
    assert log_lines[2].endswith(" works again")


def test_an_unreachable_backend_does_not_stop_a_run(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_CONFIG", "away.yml")
    retry = {"total": 0}
    config = {"transport": {"type": "http", "url": "http://127.0.0.1:9", "retry": retry}}
    Path("away.yml").write_text(json.dumps(config))
    observer = observe.open_lineage(lambda level, line: log_lines.append(f"{level}: {line}"))
    failed, report_failure = threading.Event(), observer._outage.record_failure

    def noted(error: object) -> None:
        report_failure(error)
        failed.set()

    observer._outage.record_failure = noted
    monkeypatch.setattr("slackwater.observe.openlineage.AWAY_SECONDS", 0.2)
    observer.on_start(files_pipeline())
    for status in collect_run_statuses():
        observer.on_commit(status)
    assert failed.wait(60)
    observer.on_end(None)
    assert log_lines[1:] == [
        "warning: sending lineage events (http) failed: Connection refused; the pipeline continues without lineage; this is reported only once"
    ]
    assert not [r for r in caplog.records if r.name.startswith(("urllib3", "openlineage"))]


def test_start_without_a_transport_is_refused() -> None:
    with pytest.raises(
        StartError, match=r"^--openlineage: no destination for events is set; set OPENLINEAGE_URL, or set "
    ):
        observe.open_lineage()


def test_invalid_client_configuration_is_reported_with_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("openlineage.yml").write_text('{"transport": {"type": "file"}}')
    with pytest.raises(StartError, match=r"^--openlineage: the client configuration is invalid: .*log_file_path"):
        observe.open_lineage()


PLACES = """name = "p"
[connections.c]
{connection}
[[sources]]
name = "a"
connection = "c"
query = "{query}"
schema = "k STRING, ts TIMESTAMP"
{more}
[transform.window]
kind = "tumbling"
duration_ms = 1000
event_time_column = "ts"
group_by = ["k"]
max_groups_per_window = 10
[[transform.window.aggregations]]
agg = "count"
as = "n"
[connections.screen]
kind = "console"
[target]
connection = "screen"
[state_store]
kind = "in_memory"
"""


@pytest.mark.parametrize(
    ("connection", "query", "more", "expected"),
    [
        ('kind = "files"', "/data/clicks", 'format = "json"', [("file", "/data/clicks")]),
        ('kind = "files"', "/data/clicks/day=*/x.json", 'format = "json"', [("file", "/data/clicks")]),
        ('kind = "files"', "file:///data/clicks", 'format = "json"', [("file", "/data/clicks")]),
        ('kind = "files"', "s3a://bucket/clicks/*.json", 'format = "json"', [("s3://bucket", "clicks")]),
        (
            'kind = "files"',
            "abfss://box@account.dfs.core.windows.net/clicks",
            'format = "json"',
            [("abfss://box@account.dfs.core.windows.net", "clicks")],
        ),
        (
            'kind = "kafka"\nbootstrap_servers = "k1:9092,k2:9092"',
            "clicks, views",
            "",
            [("kafka://k1:9092", "clicks"), ("kafka://k1:9092", "views")],
        ),
        (
            'kind = "rabbitmq"\nurl = "amqp://me:hunter-22@mq/shop"',
            "orders",
            "",
            [("amqp://mq:5672", "shop.orders")],
        ),
    ],
)
def test_sources_have_the_dataset_names_of_openlineage(
    connection: str, query: str, more: str, expected: list[tuple[str, str]]
) -> None:
    pipeline = loads(PLACES.format(connection=connection, query=query, more=more), "p.toml", {})
    assert openlineage.source_datasets(pipeline, pipeline.sources[0]) == expected
    assert openlineage.target_dataset(pipeline, pipeline.target) is None  # the console is not a dataset


@pytest.mark.parametrize(
    ("connection", "target", "expected"),
    [
        (
            'kind = "postgres"\nurl = "postgresql://me:hunter-22@db.shop:5433/warehouse"',
            'table = "sales.sessions"',
            ("postgres://db.shop:5433", "warehouse.sales.sessions"),
        ),
        (
            'kind = "postgres"\nurl = "host=db dbname=w password=hunter-22"',
            'table = "t"',
            ("postgres://db:5432", "w.public.t"),
        ),
        ('kind = "kafka"\nbootstrap_servers = "k1:9092"', 'topic = "sessions"', ("kafka://k1:9092", "sessions")),
        ('kind = "delta"', 'path = "s3://lake/sessions/"', ("s3://lake", "sessions")),
        (
            'kind = "iceberg"\ncatalog = "rest"\noptions = { uri = "https://me:hunter-22@catalog:8181", token = "hunter-22" }',
            'table = "shop.sessions"',
            ("https://catalog:8181", "shop.sessions"),
        ),
    ],
)
def test_targets_have_the_dataset_names_of_openlineage(connection: str, target: str, expected: tuple[str, str]) -> None:
    text = PLACES.format(connection='kind = "files"', query="/in", more='format = "json"')
    text = text.replace('[connections.screen]\nkind = "console"', f"[connections.screen]\n{connection}")
    pipeline = loads(text.replace('connection = "screen"', f'connection = "screen"\n{target}'), "p.toml", {})
    assert openlineage.target_dataset(pipeline, pipeline.target) == expected
