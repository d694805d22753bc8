"""What a probe is told of a run, from its beginning to its end."""

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
from slackwater.health import LIVE, READY, Health
from slackwater.metrics import Metrics, serve_metrics


class Told:
    """A run that is told to its health step by step."""

    def __init__(self) -> None:
        self.stop, self.now = threading.Event(), 1_700_000_000_000_000
        self.health = Health(self.stop, lambda: self.now)

    def codes(self) -> tuple[int, int, str]:
        live, ready = self.health.answer(LIVE), self.health.answer(READY)
        assert live is not None and ready is not None and live[1] == ready[1]
        return live[0], ready[0], json.loads(live[1])["phase"]


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_run_is_ready_while_it_asks_its_sources(told: Told) -> None:
    assert told.codes() == (200, 503, "starting")
    with ObserverGroup([told.health]).observe_run(loads(GOOD, "p.toml", {})):
        assert told.codes() == (200, 503, "starting")
        told.health.waiting(PendingPublish(3, 0))
        assert told.codes() == (200, 503, "publishing")
        told.health.waiting(None)
        told.health.status(STATUS)  # what the state held
        assert told.codes() == (200, 503, "starting")
        told.health.reading()
        assert told.codes() == (200, 200, "reading")
        told.health.waiting(PendingPublish(4, 0))  # each epoch is
        assert told.codes() == (200, 200, "reading")
        told.stop.set()
        assert told.codes() == (200, 503, "stopping")
    assert told.codes() == (503, 503, "ended")


def test_a_run_that_fails_is_over(told: Told) -> None:
    with pytest.raises(ValueError, match=r"^no$"), ObserverGroup([told.health]).observe_run(loads(GOOD, "p.toml", {})):
        raise ValueError("no")
    assert told.codes() == (503, 503, "ended")


def test_the_answer_says_whose_it_is_and_since_when(told: Told) -> None:
    told.health.begun(loads(GOOD, "p.toml", {}))
    told.now += 61_000_000
    told.health.reading()
    told.now += 5_000_000
    told.health.reading()
    told.health.status(STATUS)
    answer = told.health.answer(READY)
    assert answer is not None
    assert json.loads(answer[1]) == {
        "pipeline": "user-sessions",
        "phase": "reading",
        "doing": "it asks its sources and commits",
        "since": "2023-11-14T22:14:21Z",
        "epoch": STATUS.epoch,
    }
    assert told.health.answer("/metrics") is None


@pytest.fixture
def port(told: Told) -> Iterator[int]:
    metrics = Metrics()
    metrics.update(STATUS)
    server = serve_metrics(metrics, 0, health=told.health)
    yield server.port
    server.stop()


def asked(port: int, method: str, path: str, host: str = "10.0.0.7:9187") -> tuple[int, str, bytes]:
    """As a kubelet asks: by the number of the pod."""
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()


def test_probes_are_answered_beside_the_metrics(told: Told, port: int) -> None:
    status, kind, body = asked(port, "GET", READY)
    assert (status, kind, json.loads(body)["phase"]) == (503, "application/json", "starting")
    told.health.reading()
    assert [asked(port, "GET", path)[0] for path in (LIVE, READY)] == [200, 200]
    assert asked(port, "HEAD", READY)[::2] == (200, b"")
    assert b"slackwater_streaming_epoch" in asked(port, "GET", "/metrics")[2]
    assert asked(port, "POST", READY)[0] == 405
    assert asked(port, "GET", READY, "elsewhere.example")[0] == 421
