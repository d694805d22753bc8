"""Colours of the page meet WCAG 2.2 AA: text 4.5 : 1 (1.4.3), marks in charts 3 : 1 (1.4.11), light and dark."""

from __future__ import annotations

import re

import pytest

from slackwater.ui.pages import read_static_file

MODES = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", read_static_file("ui.css").decode(), re.DOTALL)]  # fmt: skip
TEXT = [(ink, ground) for ink in ("ink", "soft", "faint", "accent", "bad") for ground in ("page", "card", "grid")]
TEXT += [("mark", "card"), ("good", "good-back"), ("bad", "bad-back")]
MARKS = ("used", "late", "refused", "lost", "bad-rows", "other", "band", "idle", "mark")


def relative_luminance(colour: str) -> float:
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast_ratio(one: str, other: str) -> float:
    low, high = sorted((relative_luminance(one), relative_luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_meet_the_wcag_contrast_ratios(mode: int) -> None:
    colours = MODES[mode]
    assert {pair for pair in TEXT if contrast_ratio(colours[pair[0]], colours[pair[1]]) < 4.5} == set()
    assert {name for name in MARKS if contrast_ratio(colours[name], colours["card"]) < 3} == set()
