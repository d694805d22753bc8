"""A family of messages: what they mean, and what to do about them."""

from __future__ import annotations

import re
from dataclasses import dataclass

WARNING = "warning"  # in the place of a class: lines of the log
START = ("StartError",)
STATE = ("StateError",)


@dataclass(frozen=True)
class MessageFamily:
    """Messages that mean the same. `of`: names of error classes, or `WARNING`; `patterns`: of their texts, any of them."""

    title: str
    kinds: tuple[str, ...]
    means: str
    do: str
    patterns: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Of its heading, as code hosts and the site make it."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")

    def takes(self, text: str) -> bool:
        return not self.patterns or any(re.search(p, text) for p in self.patterns)
