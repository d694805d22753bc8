"""Headings and fenced blocks of the pages of this project."""

from __future__ import annotations

import re
from pathlib import Path

FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)


def find_heading_anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub generates them."""
    counts: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", FENCE.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        counts[name] = counts.get(name, -1) + 1
        if counts[name]:
            counts[f"{name}-{counts[name]}"] = 0
    return set(counts)


ROOT = Path(__file__).resolve().parents[2]


def read_fenced_block(language: str, nth: int = 0, page: str = "README.md") -> str:
    """Return the nth fenced block of a language on a page."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in blocks if name == language][nth]
