"""Representations of values in notebooks and terminals.

The packages that render values are higher up in the layering, so they are imported lazily, by name.
"""

from __future__ import annotations

from importlib import import_module


class NotebookRepr:
    """Mixin for an HTML representation. `slackwater.ui.notebook` renders each class that derives from it."""

    def _repr_html_(self) -> str:
        html: str = import_module("slackwater.ui.notebook").to_html(self)
        return html


class TerminalRepr:
    """Mixin that makes `str()` return the output of the command of the same name (`slackwater.cli.terminal_rendering`).

    `repr()` shows the fields.
    """

    def __str__(self) -> str:
        text: str = import_module("slackwater.cli.terminal_rendering").render_for_terminal(self)
        return text
