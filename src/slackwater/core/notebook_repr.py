"""Representations of values in notebooks and terminals.

This module cannot import the packages that render values, because they import it. Instead, `slackwater/__init__.py`
registers the rendering functions here.
"""

from __future__ import annotations

from collections.abc import Callable

Renderer = Callable[[object], str]
_renderers: dict[str, Renderer] = {}


def register_renderers(*, html: Renderer, terminal: Renderer) -> None:
    """Set the functions that render values as HTML and as text."""
    _renderers.update(html=html, terminal=terminal)


class NotebookRepr:
    """Mixin for values that notebooks show as HTML. `slackwater.ui.notebook` renders every class derived from it."""

    def _repr_html_(self) -> str:
        return _renderers["html"](self)


class TerminalRepr:
    """Mixin that makes `str()` format a value as the commands print it (see `slackwater.cli.api_value_format`).

    `repr()` shows the fields.
    """

    def __str__(self) -> str:
        return _renderers["terminal"](self)
