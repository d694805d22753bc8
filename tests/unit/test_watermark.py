"""Watermarks: the newest event minus the lateness per source and partition, and the minimum over those not idle.

The lateness is 10. A source or partition counts as idle after 60 without rows. A timeline of two partitions:

    epoch        1     2     3     4     5     6
    a          ──●─────●─────●─────●─────○─────○────   newest event 100, 200, 300, 400
    b          ────────○─────○─────●─────○─────○────   silent for 60 in all, then idle; returns with 150
    watermark    –     –    290   140   140    -       – : nothing known of b yet;  - : all idle, the global one stays
                             ▲     ▲                   the global one never goes back: it stays at 290
                        b is idle  b is back
"""

from __future__ import annotations

import pytest

from slackwater.watermark import (
    NO_WATERMARK,
    SourceActivity,
    SourceClock,
    advance_clock,
    advance_while_idle,
    global_watermark,
    watermark_holder,
)

NEVER = NO_WATERMARK
SILENT = SourceActivity(0, None)


def source_clock(**settings: int | bool) -> SourceClock:
    return SourceClock(lateness_us=10, idleness_us=60, **settings)  # type: ignore[arg-type]


def epoch_activity(**newest: int | None) -> SourceActivity:
    """Build the activity of one epoch: the newest event of each partition, or None without rows."""
    parts = {name: SILENT if t is None else SourceActivity(1, t) for name, t in newest.items()}
    times = [t for t in newest.values() if t is not None]
    return SourceActivity(len(times), max(times, default=None), parts)


def clock_after_epochs(*epochs: tuple[SourceActivity, int]) -> SourceClock:
    c = source_clock()
    for activity, quiet_us in epochs:
        c = advance_clock(c, activity, quiet_us)
    return c


@pytest.mark.semantics("watermarks")
def test_watermark_is_newest_event_minus_lateness_and_never_moves_back() -> None:
    """The watermark is the newest event time minus the lateness. Older rows and bad rows do not move it."""
    c = advance_clock(source_clock(), SourceActivity(3, 100), 0)
    assert c.watermark_us == 90
    assert advance_clock(c, SourceActivity(1, 50), 0).watermark_us == 90
    assert (
        advance_clock(c, SourceActivity(5, None), 0).watermark_us == 90
    )  # only bad rows: rows arrived, but none with a time
    assert global_watermark(95, [c]) == 95


def test_source_without_rows_holds_the_watermark_until_idle() -> None:
    spoke, silent = advance_clock(source_clock(), SourceActivity(1, 100), 0), source_clock()
    assert global_watermark(NEVER, [spoke, silent]) == NEVER
    silent = advance_clock(silent, SILENT, 59)
    assert not silent.idle
    silent = advance_clock(silent, SILENT, 1)
    assert silent.idle
    assert global_watermark(NEVER, [spoke, silent]) == 90
    assert not advance_clock(silent, SourceActivity(1, 5), 0).idle
    assert global_watermark(90, [advance_clock(spoke, SILENT, 99), silent]) == 90, "all idle: it stays"


def test_watermark_holder_is_the_slowest_source_that_is_not_idle() -> None:
    fast, slow = (
        advance_clock(source_clock(), SourceActivity(1, 100), 0),
        advance_clock(source_clock(), SourceActivity(1, 50), 0),
    )
    assert watermark_holder({"fast": fast, "slow": slow}) == "slow"
    assert watermark_holder({"fast": fast, "slow": advance_clock(slow, SILENT, 60)}) == "fast"
    assert watermark_holder({"fast": advance_clock(fast, SILENT, 60)}) is None


def test_two_partitions_match_the_timeline_of_six_epochs() -> None:
    """Check activity, quiet time, watermark, global watermark and idle partitions per epoch of the timeline above."""
    story = [
        (epoch_activity(a=100, b=None), 0, NEVER, NEVER, ()),
        (epoch_activity(a=200, b=None), 30, NEVER, NEVER, ()),
        (epoch_activity(a=300, b=None), 30, 290, 290, ("b",)),
        (epoch_activity(a=400, b=150), 0, 140, 290, ()),
        (epoch_activity(a=None, b=None), 30, 140, 290, ()),
        (epoch_activity(a=None, b=None), 30, 390, 290, ("a", "b")),
    ]
    c, everywhere = source_clock(), NEVER
    for epoch, (activity, quiet_us, watermark, expected, idle) in enumerate(story, 1):
        c = advance_clock(c, activity, quiet_us)
        everywhere = global_watermark(everywhere, [c])
        assert (c.watermark_us, everywhere, c.idle_partitions) == (watermark, expected, idle), f"epoch {epoch}"
    assert c.idle_flags == (("", True), ("a", True), ("b", True))


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a")])
def test_slowest_partition_sets_the_watermark_in_any_order(order: tuple[str, ...]) -> None:
    newest = {"a": 300, "b": 120, "c": 200}
    c = clock_after_epochs((epoch_activity(**{name: newest[name] for name in order}), 0))
    assert c.watermark_us == 110
    assert list(c.partitions) == ["a", "b", "c"]


def test_silent_partition_holds_the_watermark_until_idle() -> None:
    c = clock_after_epochs((epoch_activity(a=100, b=100), 0), (epoch_activity(a=500, b=None), 59))
    assert (c.watermark_us, c.idle_partitions) == (90, ())
    c = advance_clock(c, epoch_activity(a=600, b=None), 1)
    assert (c.watermark_us, c.idle_partitions) == (590, ("b",))
    assert not c.idle, "a source with one busy partition is busy"


def test_returning_partition_is_active_and_restarts_the_quiet_time() -> None:
    c = clock_after_epochs(
        (epoch_activity(a=100, b=100), 0), (epoch_activity(a=500, b=None), 60), (epoch_activity(a=510, b=480), 0)
    )
    assert (c.watermark_us, c.idle_partitions) == (470, ())
    c = advance_clock(c, epoch_activity(a=700, b=None), 59)
    assert c.watermark_us == 470
    assert advance_clock(c, epoch_activity(a=700, b=None), 1).watermark_us == 690


def test_partition_with_only_bad_rows_is_not_idle_and_holds_the_watermark() -> None:
    bad = SourceActivity(2, 100, {"a": SourceActivity(1, 100), "b": SourceActivity(1, None)})
    c = clock_after_epochs((bad, 0), (bad, 60), (bad, 60))
    assert (c.watermark_us, c.idle_partitions) == (NEVER, ())


def test_new_partition_holds_the_watermark_until_active_or_idle() -> None:
    before = clock_after_epochs((epoch_activity(a=100), 0))
    new = advance_clock(before, epoch_activity(a=200, b=None), 0)
    assert new.watermark_us == NEVER
    assert global_watermark(90, [new]) == 90, "an emitted watermark is not taken back"
    assert advance_clock(new, epoch_activity(a=200, b=150), 0).watermark_us == 140
    assert advance_clock(new, epoch_activity(a=200, b=None), 60).watermark_us == 190


def test_partition_that_is_no_longer_listed_is_removed() -> None:
    """A partition of a topic that is deleted or no longer read must not hold the watermark forever."""
    c = clock_after_epochs((epoch_activity(a=100, b=100), 0), (epoch_activity(a=300), 0))
    assert (c.watermark_us, list(c.partitions)) == (290, ["a"])
    assert list(advance_clock(c, SILENT, 1).partitions) == ["a"], "silence lists nothing"


def test_source_is_idle_when_all_partitions_are_idle() -> None:
    quiet = clock_after_epochs((epoch_activity(a=100, b=200), 0), (SILENT, 60))
    assert quiet.idle_flags == (("", True), ("a", True), ("b", True))
    other = clock_after_epochs((SourceActivity(1, 500), 0))
    assert global_watermark(90, [quiet]) == 90
    assert global_watermark(90, [quiet, other]) == 490
    back = advance_clock(quiet, epoch_activity(a=600, b=None), 0)
    assert (back.idle, back.idle_partitions, back.watermark_us) == (False, ("b",), 590)


# -- idle_close_ms: here 100 ------------------------------------------------------------------------------------------


def advance_silent_clocks(*clocks: SourceClock, quiet_us: int) -> list[SourceClock]:
    return [advance_clock(c, SILENT, quiet_us) for c in clocks]


def test_watermark_advances_by_the_quiet_time_when_all_sources_are_silent() -> None:
    a, b = (
        advance_clock(source_clock(), SourceActivity(1, 500), 0),
        advance_clock(source_clock(), SourceActivity(1, 300), 0),
    )
    assert advance_while_idle(290, advance_silent_clocks(a, b, quiet_us=99), 100) == 290
    assert advance_while_idle(290, advance_silent_clocks(a, b, quiet_us=100), 100) == 490 + 100
    assert advance_while_idle(290, advance_silent_clocks(a, b, quiet_us=10**9), 100) == 490 + 10**9
    assert advance_while_idle(10**6, advance_silent_clocks(a, b, quiet_us=100), 100) == 10**6, "it never goes back"
    assert advance_while_idle(290, advance_silent_clocks(a, b, quiet_us=10**9), None) == 290, "opt-in"


def test_idle_close_uses_the_quiet_time_of_the_last_active_source() -> None:
    a = advance_clock(advance_clock(source_clock(), SourceActivity(1, 500), 0), SILENT, 10**6)
    b = advance_clock(source_clock(), SourceActivity(1, 300), 0)
    assert advance_while_idle(290, [a, advance_clock(b, SILENT, 99)], 100) == 290
    assert advance_while_idle(290, [a, advance_clock(b, SILENT, 150)], 100) == 490 + 150
    assert advance_while_idle(290, [b, a], 0) == 290, "one source is awake"


@pytest.mark.parametrize("first", ["a", "b"])
def test_idle_close_does_not_depend_on_the_order_of_silent_sources(first: str) -> None:
    """The global watermark stays at the value of the last active source. Idle close advances the largest watermark."""
    clocks = {
        "a": advance_clock(source_clock(), SourceActivity(1, 500), 0),
        "b": advance_clock(source_clock(), SourceActivity(1, 300), 0),
    }
    second = "b" if first == "a" else "a"
    clocks[first] = advance_clock(clocks[first], SILENT, 60)
    clocks = {n: advance_clock(c, SILENT if n == first else SourceActivity(1, 100), 0) for n, c in clocks.items()}
    stays = global_watermark(NEVER, list(clocks.values()))
    assert stays == {"a": 290, "b": 490}[first]
    clocks = {n: advance_clock(c, SILENT, 60) for n, c in clocks.items()}
    assert clocks[second].idle
    assert global_watermark(stays, list(clocks.values())) == stays, "all idle: it stays"
    assert advance_while_idle(stays, list(clocks.values()), 60) == 490 + 60


def test_silence_before_the_first_event_does_not_advance_the_watermark() -> None:
    never = advance_clock(source_clock(), SILENT, 10**6)
    assert advance_while_idle(NEVER, [never], 100) == NEVER
    assert advance_while_idle(NEVER, [], 100) == NEVER
    spoke = advance_clock(advance_clock(source_clock(), SourceActivity(1, 500), 0), SILENT, 200)
    assert advance_while_idle(NEVER, [never, spoke], 100) == 490 + 200, "a source without rows so far does not count"


def test_idle_close_starts_at_the_newest_event_of_all_partitions() -> None:
    quiet = clock_after_epochs((epoch_activity(a=100, b=200), 0), (SILENT, 100))
    assert advance_while_idle(90, [quiet], 100) == 190 + 100


def test_quiet_time_is_counted_beyond_the_idleness() -> None:
    c = clock_after_epochs((epoch_activity(a=100, b=None), 0), (SILENT, 70), (SILENT, 80))
    assert (c.quiet_us, c.undecided_us) == (150, 60)
    assert [p.quiet_us for p in c.partitions.values()] == [150, 150]
    assert advance_clock(c, epoch_activity(a=101, b=None), 5).quiet_us == 0


def test_idle_source_counts_as_overtaken_until_caught_up() -> None:
    never, spoke = source_clock(), advance_clock(source_clock(), SourceActivity(1, 100), 0)
    assert not never.was_overtaken(400), "not idle yet: the watermark waits for it"
    assert advance_clock(never, SILENT, 60).was_overtaken(400)
    assert advance_clock(spoke, SILENT, 60).was_overtaken(400)
    assert not advance_clock(spoke, SILENT, 60).was_overtaken(90), "idle, and nothing went on without it"
    assert advance_clock(spoke, SourceActivity(1, 409), 0).was_overtaken(400)
    assert not advance_clock(spoke, SourceActivity(1, 410), 0).was_overtaken(400)


def test_partitions_are_overtaken_individually() -> None:
    c = clock_after_epochs(
        (epoch_activity(a=100, b=100, c=None), 0),
        (epoch_activity(a=500, b=None, c=None), 60),
        (epoch_activity(a=510, b=480, c=None), 0),
    )
    assert c.overtaken_partitions(490) == ("b", "c")
    assert not c.was_overtaken(490)
    assert advance_clock(c, epoch_activity(a=510, b=500, c=499), 0).overtaken_partitions(490) == ("c",)
