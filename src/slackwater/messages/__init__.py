"""What messages mean and what to do about them, by families. `docs/messages.md` is made of this and of the sources.

A message belongs to the first family of its class (or of the class above it) of which a pattern is in its text; a family
without patterns takes what the others leave. So a new message needs an entry of its own only where none says what to do.
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


def family(kinds: Sequence[str], text: str) -> MessageFamily | None:
    """Of a message: `kinds` are the names of its class and those above it, or `WARNING`."""
    for kind in kinds:
        for candidate in FAMILIES:
            if kind in candidate.kinds and candidate.takes(text):
                return candidate
    return None


def find_page(kinds: Sequence[str], text: str) -> str | None:
    """The page and heading about a message; None of a class that has none."""
    match = family(kinds, text)
    return None if match is None else f"{PAGE}#{match.anchor}"
