"""Health probes of a run, from its start to its end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from tests.support.command import GOOD
from tests.support.example_statuses_and_metrics import STATUS

from slackwater.config.toml import loads
from slackwater.engine.observer import ObserverGroup, PendingPublish
from slackwater.health_probes import LIVE, READY, HealthProbes
from slackwater.metrics import Metrics, serve_metrics


class ProbedRun:
    """A run that reports its phases to its health probes."""

    def __init__(self) -> None:
        self.stop, self.now = threading.Event(), 1_700_000_000_000_000
        self.health = HealthProbes(self.stop, lambda: self.now)

    def probe_codes(self) -> tuple[int, int, str]:
        live, ready = self.health.answer(LIVE), self.health.answer(READY)
        assert live is not None and ready is not None and live[1] == ready[1]
        return live[0], ready[0], json.loads(live[1])["phase"]


@pytest.fixture
def probed_run() -> ProbedRun:
    return ProbedRun()


def test_a_run_is_ready_while_it_reads_its_sources(probed_run: ProbedRun) -> None:
    assert probed_run.probe_codes() == (200, 503, "starting")
    with ObserverGroup([probed_run.health]).observe_run(loads(GOOD, "p.toml", {})):
        assert probed_run.probe_codes() == (200, 503, "starting")
        probed_run.health.on_pending(PendingPublish(3, 0))
        assert probed_run.probe_codes() == (200, 503, "publishing")
        probed_run.health.on_pending(None)
        probed_run.health.on_commit(STATUS)  # the status from the state
        assert probed_run.probe_codes() == (200, 503, "starting")
        probed_run.health.on_running()
        assert probed_run.probe_codes() == (200, 200, "reading")
        probed_run.health.on_pending(PendingPublish(4, 0))  # each epoch waits until it is published
        assert probed_run.probe_codes() == (200, 200, "reading")
        probed_run.stop.set()
        assert probed_run.probe_codes() == (200, 503, "stopping")
    assert probed_run.probe_codes() == (503, 503, "ended")


def test_failed_run_is_reported_as_ended(probed_run: ProbedRun) -> None:
    with (
        pytest.raises(ValueError, match=r"^no$"),
        ObserverGroup([probed_run.health]).observe_run(loads(GOOD, "p.toml", {})),
    ):
        raise ValueError("no")
    assert probed_run.probe_codes() == (503, 503, "ended")


def test_probe_response_has_pipeline_phase_epoch_and_time(probed_run: ProbedRun) -> None:
    probed_run.health.on_start(loads(GOOD, "p.toml", {}))
    probed_run.now += 61_000_000
    probed_run.health.on_running()
    probed_run.now += 5_000_000
    probed_run.health.on_running()
    probed_run.health.on_commit(STATUS)
    answer = probed_run.health.answer(READY)
    assert answer is not None
    assert json.loads(answer[1]) == {
        "pipeline": "user-sessions",
        "phase": "reading",
        "doing": "the run polls its sources and commits epochs",
        "since": "2023-11-14T22:14:21Z",
        "epoch": STATUS.epoch,
    }
    assert probed_run.health.answer("/metrics") is None


@pytest.fixture
def metrics_port(probed_run: ProbedRun) -> Iterator[int]:
    metrics = Metrics()
    metrics.update(STATUS)
    server = serve_metrics(metrics, 0, health=probed_run.health)
    yield server.port
    server.stop()


def send_probe_request(port: int, method: str, path: str, host: str = "10.0.0.7:9187") -> tuple[int, str, bytes]:
    """Send a request as a kubelet does, with the IP address of the pod as Host."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()


def test_the_metrics_server_answers_probes(probed_run: ProbedRun, metrics_port: int) -> None:
    status, kind, body = send_probe_request(metrics_port, "GET", READY)
    assert (status, kind, json.loads(body)["phase"]) == (503, "application/json", "starting")
    probed_run.health.on_running()
    assert [send_probe_request(metrics_port, "GET", path)[0] for path in (LIVE, READY)] == [200, 200]
    assert send_probe_request(metrics_port, "HEAD", READY)[::2] == (200, b"")
    assert b"slackwater_streaming_epoch" in send_probe_request(metrics_port, "GET", "/metrics")[2]
    assert send_probe_request(metrics_port, "POST", READY)[0] == 405
    assert send_probe_request(metrics_port, "GET", READY, "elsewhere.example")[0] == 421
