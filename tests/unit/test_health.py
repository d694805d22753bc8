"""Health probes of a run, from its start to its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from tests.support.command import GOOD
from tests.support.statuses import STATUS

from slackwater.config.toml import loads
from slackwater.engine.observer import ObserverGroup, PendingPublish
from slackwater.health_probes import LIVE, READY, HealthProbes
from slackwater.metrics import Metrics, serve_metrics


class Run:
    """A run that reports its phases to its health probes."""

    def __init__(self) -> None:
        self.stop, self.now = threading.Event(), 1_700_000_000_000_000
        self.health = HealthProbes(self.stop, lambda: self.now)

    def codes(self) -> tuple[int, int, str]:
        live, ready = self.health.answer(LIVE), self.health.answer(READY)
        assert live is not None and ready is not None and live[1] == ready[1]
        return live[0], ready[0], json.loads(live[1])["phase"]


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_run_is_ready_while_it_reads_its_sources(run: Run) -> None:
    assert run.codes() == (200, 503, "starting")
    with ObserverGroup([run.health]).observe_run(loads(GOOD, "p.toml", {})):
        assert run.codes() == (200, 503, "starting")
        run.health.on_pending(PendingPublish(3, 0))
        assert run.codes() == (200, 503, "publishing")
        run.health.on_pending(None)
        run.health.on_commit(STATUS)  # the status from the state
        assert run.codes() == (200, 503, "starting")
        run.health.on_running()
        assert run.codes() == (200, 200, "reading")
        run.health.on_pending(PendingPublish(4, 0))  # each epoch waits until it is published
        assert run.codes() == (200, 200, "reading")
        run.stop.set()
        assert run.codes() == (200, 503, "stopping")
    assert run.codes() == (503, 503, "ended")


def test_failed_run_is_reported_as_ended(run: Run) -> None:
    with pytest.raises(ValueError, match=r"^no$"), ObserverGroup([run.health]).observe_run(loads(GOOD, "p.toml", {})):
        raise ValueError("no")
    assert run.codes() == (503, 503, "ended")


def test_probe_response_has_pipeline_phase_epoch_and_time(run: Run) -> None:
    run.health.on_start(loads(GOOD, "p.toml", {}))
    run.now += 61_000_000
    run.health.on_running()
    run.now += 5_000_000
    run.health.on_running()
    run.health.on_commit(STATUS)
    answer = run.health.answer(READY)
    assert answer is not None
    assert json.loads(answer[1]) == {
        "pipeline": "user-sessions",
        "phase": "reading",
        "doing": "the run polls its sources and commits epochs",
        "since": "2023-11-14T22:14:21Z",
        "epoch": STATUS.epoch,
    }
    assert run.health.answer("/metrics") is None


@pytest.fixture
def port(run: Run) -> Iterator[int]:
    metrics = Metrics()
    metrics.update(STATUS)
    server = serve_metrics(metrics, 0, health=run.health)
    yield server.port
    server.stop()


def answer_of(port: int, method: str, path: str, host: str = "10.0.0.7:9187") -> tuple[int, str, bytes]:
    """Send a request as a kubelet does, with the IP address of the pod as Host."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()


def test_the_metrics_server_answers_probes(run: Run, port: int) -> None:
    status, kind, body = answer_of(port, "GET", READY)
    assert (status, kind, json.loads(body)["phase"]) == (503, "application/json", "starting")
    run.health.on_running()
    assert [answer_of(port, "GET", path)[0] for path in (LIVE, READY)] == [200, 200]
    assert answer_of(port, "HEAD", READY)[::2] == (200, b"")
    assert b"slackwater_streaming_epoch" in answer_of(port, "GET", "/metrics")[2]
    assert answer_of(port, "POST", READY)[0] == 405
    assert answer_of(port, "GET", READY, "elsewhere.example")[0] == 421
