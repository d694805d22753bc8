"""Fragments of Markdown that the generated pages share."""

from __future__ import annotations

import re

MADE = "<!-- made by `make reference`; not to be edited -->"


def code(text: str) -> str:
    """Return text as code within a sentence or a table."""
    ticks = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}".replace("|", "\\|")


def cell(text: str) -> str:
    """Escape a sentence for a table cell, so that it contains no links, tags or column separators."""
    parts = re.split(r"(`[^`]*`)", text.replace("\n", " "))
    return "".join(p if p[:1] == "`" else re.sub(r"([|<\[])", r"\\\1", p) for p in parts)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring or help, on one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]


def links_from_folder(text: str) -> str:
    """Return text of a page in a folder of docs/. Its links are written as from docs/."""
    return re.sub(r"\]\((?![a-z]+:|#)", "](../", text)
