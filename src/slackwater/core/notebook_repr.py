"""Representations of values in notebooks and terminals.

The packages that render values import this one. Therefore, `slackwater/__init__.py` registers their functions here.
"""

from __future__ import annotations

from collections.abc import Callable

Renderer = Callable[[object], str]
_renderers: dict[str, Renderer] = {}


def register_renderers(*, html: Renderer, terminal: Renderer) -> None:
    """Set the functions that render values as HTML and as text."""
    _renderers.update(html=html, terminal=terminal)


class NotebookRepr:
    """Mixin for an HTML representation. `slackwater.ui.notebook` renders each class that derives from it."""

    def _repr_html_(self) -> str:
        return _renderers["html"](self)


class TerminalRepr:
    """Mixin that makes `str()` return the output of the command of the same name (`slackwater.cli.terminal_rendering`).

    `repr()` shows the fields.
    """

    def __str__(self) -> str:
        return _renderers["terminal"](self)
