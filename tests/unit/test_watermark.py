"""Watermarks: newest event minus lateness, per source and per partition; the minimum over what is not idle.

Here lateness is 10 and a source or partition counts as idle after 60 of silence. The story of two partitions below:

    epoch        1     2     3     4     5     6
    a          ──●─────●─────●─────●─────○─────○────   newest event 100, 200, 300, 400
    b          ────────○─────○─────●─────○─────○────   silent for 60 in all, then idle; returns with 150
    watermark    –     –    290   140   140    -       – : nothing known of b yet;  - : all idle, the global one stays
                             ▲     ▲                   the global one never goes back: it stays at 290
                        b is idle  b is back
"""

from __future__ import annotations

import pytest

from slackwater.watermark import NO_WATERMARK, Heard, SourceClock, global_watermark, holder, listen

NEVER = NO_WATERMARK
SILENT = Heard(0, None)


def clock(**given: int | bool) -> SourceClock:
    return SourceClock(lateness_us=10, idleness_us=60, **given)  # type: ignore[arg-type]


def heard(**newest: int | None) -> Heard:
    """One epoch: the newest event of each partition there is; None: no rows in it."""
    parts = {name: SILENT if t is None else Heard(1, t) for name, t in newest.items()}
    times = [t for t in newest.values() if t is not None]
    return Heard(len(times), max(times, default=None), parts)


def after(*epochs: tuple[Heard, int]) -> SourceClock:
    c = clock()
    for what, quiet_us in epochs:
        c = listen(c, what, quiet_us)
    return c


def test_a_watermark_is_the_newest_event_minus_the_lateness_and_never_goes_back() -> None:
    c = listen(clock(), Heard(3, 100), 0)
    assert c.watermark_us == 90
    assert listen(c, Heard(1, 50), 0).watermark_us == 90
    assert listen(c, Heard(5, None), 0).watermark_us == 90  # only bad rows: heard, but no time
    assert global_watermark(95, [c]) == 95


def test_a_source_not_heard_from_holds_the_watermark_until_it_is_idle() -> None:
    spoke, silent = listen(clock(), Heard(1, 100), 0), clock()
    assert global_watermark(NEVER, [spoke, silent]) == NEVER
    silent = listen(silent, SILENT, 59)
    assert not silent.idle
    silent = listen(silent, SILENT, 1)
    assert silent.idle
    assert global_watermark(NEVER, [spoke, silent]) == 90
    assert not listen(silent, Heard(1, 5), 0).idle
    assert global_watermark(90, [listen(spoke, SILENT, 99), silent]) == 90, "all idle: it stays"


def test_the_holder_is_the_slowest_that_is_not_idle() -> None:
    fast, slow = listen(clock(), Heard(1, 100), 0), listen(clock(), Heard(1, 50), 0)
    assert holder({"fast": fast, "slow": slow}) == "slow"
    assert holder({"fast": fast, "slow": listen(slow, SILENT, 60)}) == "fast"
    assert holder({"fast": listen(fast, SILENT, 60)}) is None


def test_the_story_of_two_partitions() -> None:
    """The drawing at the top, epoch by epoch: (what was heard, quiet time, watermark, global one, idle partitions)."""
    story = [
        (heard(a=100, b=None), 0, NEVER, NEVER, ()),
        (heard(a=200, b=None), 30, NEVER, NEVER, ()),
        (heard(a=300, b=None), 30, 290, 290, ("b",)),
        (heard(a=400, b=150), 0, 140, 290, ()),
        (heard(a=None, b=None), 30, 140, 290, ()),
        (heard(a=None, b=None), 30, 390, 290, ("a", "b")),
    ]
    c, everywhere = clock(), NEVER
    for epoch, (what, quiet_us, watermark, expected, idle) in enumerate(story, 1):
        c = listen(c, what, quiet_us)
        everywhere = global_watermark(everywhere, [c])
        assert (c.watermark_us, everywhere, c.idle_partitions) == (watermark, expected, idle), f"epoch {epoch}"
    assert c.flags == (("", True), ("a", True), ("b", True))


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a")])
def test_the_slowest_partition_counts_in_any_order(order: tuple[str, ...]) -> None:
    newest = {"a": 300, "b": 120, "c": 200}
    c = after((heard(**{name: newest[name] for name in order}), 0))
    assert c.watermark_us == 110
    assert list(c.partitions) == ["a", "b", "c"]


def test_a_partition_that_goes_silent_holds_its_watermark_until_it_is_idle() -> None:
    c = after((heard(a=100, b=100), 0), (heard(a=500, b=None), 59))
    assert (c.watermark_us, c.idle_partitions) == (90, ())
    c = listen(c, heard(a=600, b=None), 1)
    assert (c.watermark_us, c.idle_partitions) == (590, ("b",))
    assert not c.idle, "a source with one busy partition is busy"


def test_an_idle_partition_that_returns_counts_again_and_its_silence_begins_anew() -> None:
    c = after((heard(a=100, b=100), 0), (heard(a=500, b=None), 60), (heard(a=510, b=480), 0))
    assert (c.watermark_us, c.idle_partitions) == (470, ())
    c = listen(c, heard(a=700, b=None), 59)
    assert c.watermark_us == 470
    assert listen(c, heard(a=700, b=None), 1).watermark_us == 690


def test_a_partition_with_rows_but_no_time_is_not_idle_and_holds() -> None:
    bad = Heard(2, 100, {"a": Heard(1, 100), "b": Heard(1, None)})
    c = after((bad, 0), (bad, 60), (bad, 60))
    assert (c.watermark_us, c.idle_partitions) == (NEVER, ())


def test_a_new_partition_holds_the_watermark_until_it_speaks_or_is_idle() -> None:
    before = after((heard(a=100), 0))
    new = listen(before, heard(a=200, b=None), 0)
    assert new.watermark_us == NEVER
    assert global_watermark(90, [new]) == 90, "what was said is not taken back"
    assert listen(new, heard(a=200, b=150), 0).watermark_us == 140
    assert listen(new, heard(a=200, b=None), 60).watermark_us == 190


def test_a_partition_that_is_no_longer_listed_is_forgotten() -> None:
    """Its topic was deleted, or is not asked for any more: it must not hold the watermark for ever."""
    c = after((heard(a=100, b=100), 0), (heard(a=300), 0))
    assert (c.watermark_us, list(c.partitions)) == (290, ["a"])
    assert list(listen(c, SILENT, 1).partitions) == ["a"], "silence lists nothing"


def test_all_partitions_idle_make_the_source_idle_and_others_go_on() -> None:
    quiet = after((heard(a=100, b=200), 0), (SILENT, 60))
    assert quiet.flags == (("", True), ("a", True), ("b", True))
    other = after((Heard(1, 500), 0))
    assert global_watermark(90, [quiet]) == 90
    assert global_watermark(90, [quiet, other]) == 490
    back = listen(quiet, heard(a=600, b=None), 0)
    assert (back.idle, back.idle_partitions, back.watermark_us) == (False, ("b",), 590)
