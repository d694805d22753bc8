"""A family of messages: what the messages mean, and what to do about them."""

from __future__ import annotations

import re
from dataclasses import dataclass

WARNING = "warning"  # used instead of a class, for log lines
START = ("StartError",)
STATE = ("StateError",)


@dataclass(frozen=True)
class MessageFamily:
    """Messages with the same meaning.

    Args:
        title: The heading on the page.
        kinds: The names of the error classes, or `WARNING` for log lines.
        means: What the messages mean.
        do: What to do about them.
        patterns: Regular expressions. Each message of the family matches one of them; without any, all messages match.
    """

    title: str
    kinds: tuple[str, ...]
    means: str
    do: str
    patterns: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The anchor of the heading, as code hosts and the documentation site generate it."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")

    def matches(self, text: str) -> bool:
        return not self.patterns or any(re.search(p, text) for p in self.patterns)
