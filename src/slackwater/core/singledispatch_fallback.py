"""Fallback for the `functools.singledispatch` functions that each kind of window and join implements."""

from __future__ import annotations

from typing import NoReturn


def raise_unregistered(kind: object, question: str) -> NoReturn:
    """Raise TypeError because no implementation of a function is registered for this kind.

    `question`: the import path of the function, as in "slackwater.operators.panes.function".
    """
    raise TypeError(f"{question} is not registered for {type(kind).__qualname__}")
