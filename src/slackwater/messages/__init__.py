"""Families of messages: what their messages mean, and what to do about them.

The pages in `docs/messages/` are generated from these families and from the messages in the source code.

A message belongs to the first family of its class, or of a base class, that has a pattern matching the message. A
family without patterns takes all remaining messages of its class. Therefore, a new message needs a new family only if
no existing family fits.

May import: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from slackwater.messages import commands, config, epochs, state, systems, warnings
from slackwater.messages.family import WARNING as WARNING
from slackwater.messages.family import MessageFamily as MessageFamily

PAGES: Mapping[str, Sequence[MessageFamily]] = {
    "docs/messages/config.md": config.FAMILIES,
    "docs/messages/state.md": state.FAMILIES,
    "docs/messages/services.md": systems.SERVICES,
    "docs/messages/data.md": systems.SOURCES_AND_TARGETS,
    "docs/messages/commands.md": commands.FAMILIES,
    "docs/messages/run.md": epochs.FAMILIES,
    "docs/messages/warnings.md": warnings.FAMILIES,
}
FAMILIES: Sequence[MessageFamily] = tuple(chain.from_iterable(PAGES.values()))  # the first family that matches wins


def find_family(kinds: Sequence[str], text: str) -> MessageFamily | None:
    """Return the family of a message. `kinds`: the names of its class and base classes, or `WARNING`."""
    for kind in kinds:
        for candidate in FAMILIES:
            if kind in candidate.kinds and candidate.matches(text):
                return candidate
    return None


def find_page(kinds: Sequence[str], text: str) -> str | None:
    """Return the page and heading that explain a message ("docs/messages/config.md#…"), or None without a family."""
    match = find_family(kinds, text)
    if match is None:
        return None
    page = next(page for page, families in PAGES.items() if match in families)
    return f"{page}#{match.anchor}"
