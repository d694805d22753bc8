"""Poll interval of a quiet pipeline, and the time of the last poll."""

from __future__ import annotations

from slackwater.runner.run_loops import LONGEST_MS, SHORTEST_MS, PollInterval


def test_the_poll_interval_grows_in_steps_and_resets_immediately() -> None:
    put: list[int] = []
    pace = PollInterval(put.append)
    for tenth in range(600):
        pace.slow_down(tenth / 10)
        assert pace.pause_ms <= max(SHORTEST_MS, 1000 * tenth / 10 * 0.02), "at most a fiftieth of the silence"
    assert put == sorted(put)
    assert put[-1] == LONGEST_MS
    assert len(put) < 10, "each is a call into Spark's process"
    pace.speed_up()
    pace.speed_up()
    assert put[-2:] == [LONGEST_MS, SHORTEST_MS]


def test_time_since_the_last_poll_does_not_count_as_silence() -> None:
    pace = PollInterval(lambda ms: None)
    assert pace.polled_until(100.0) == 100.0 - SHORTEST_MS / 1000
    pace.slow_down(60.0)
    assert pace.polled_until(100.0) == 100.0 - LONGEST_MS / 1000


def test_a_fixed_poll_interval_does_not_change() -> None:
    pace = PollInterval(None)
    pace.slow_down(60.0)
    assert pace.pause_ms == SHORTEST_MS
