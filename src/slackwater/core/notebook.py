"""How values show themselves in a notebook. The room that draws is above all that are drawn, so it is found by its name."""

from __future__ import annotations

from importlib import import_module


class Shown:
    """Has a picture: see `slackwater.ui.notebook`, which has one for each class that derives from this."""

    def _repr_html_(self) -> str:
        made: str = import_module("slackwater.ui.notebook").html(self)
        return made
