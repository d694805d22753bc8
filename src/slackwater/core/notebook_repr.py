"""How values show themselves in a notebook, and printed. The room that draws is above all that are drawn, so it is found by its name."""

from __future__ import annotations

from importlib import import_module


class NotebookRepr:
    """Has a picture: see `slackwater.ui.notebook`, which has one for each class that derives from this."""

    def _repr_html_(self) -> str:
        html: str = import_module("slackwater.ui.notebook").to_html(self)
        return html


class TerminalRepr:
    """Prints what the command of the same name prints: see `slackwater.cli.printed`. Its repr shows the fields."""

    def __str__(self) -> str:
        text: str = import_module("slackwater.cli.printed").text(self)
        return text
