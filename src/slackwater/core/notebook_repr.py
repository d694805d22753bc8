"""Representations of values in notebooks and terminals.

The rooms that render are above this one, so they are imported by name when they are needed.
"""

from __future__ import annotations

from importlib import import_module


class NotebookRepr:
    """Mixin for an HTML representation. `slackwater.ui.notebook` renders each class that derives from this one."""

    def _repr_html_(self) -> str:
        html: str = import_module("slackwater.ui.notebook").to_html(self)
        return html


class TerminalRepr:
    """Mixin whose `str()` is the output of the command of the same name (`slackwater.cli.value_text`).

    `repr()` shows the fields.
    """

    def __str__(self) -> str:
        text: str = import_module("slackwater.cli.value_text").text(self)
        return text
