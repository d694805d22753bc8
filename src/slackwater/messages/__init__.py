"""Families of messages: what they mean and what to do. `docs/messages.md` is generated from this and from the sources.

A message belongs to the first family of its class (or of a base class) with a pattern that is in its text. A family without
patterns takes all other messages of its class. So a new message needs a new family only if no family fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages import commands, config, epochs, state, systems, warnings
from slackwater.messages.family import WARNING as WARNING
from slackwater.messages.family import MessageFamily as MessageFamily

PAGE = "docs/messages.md"
FAMILIES: Sequence[MessageFamily] = (  # the first that fits counts
    *config.FAMILIES,
    *state.FAMILIES,
    *systems.FAMILIES,
    *commands.FAMILIES,
    *epochs.FAMILIES,
    *warnings.FAMILIES,
)


def find_family(kinds: Sequence[str], text: str) -> MessageFamily | None:
    """Return the family of a message. `kinds`: the names of its class and base classes, or `WARNING`."""
    for kind in kinds:
        for candidate in FAMILIES:
            if kind in candidate.kinds and candidate.matches(text):
                return candidate
    return None


def find_page(kinds: Sequence[str], text: str) -> str | None:
    """Return the page and heading about a message; None if its class has no family."""
    match = find_family(kinds, text)
    return None if match is None else f"{PAGE}#{match.anchor}"
