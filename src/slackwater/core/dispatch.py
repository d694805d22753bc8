"""What a room asks of every kind of window and join it answers by `functools.singledispatch`; here is its answer for others."""

from __future__ import annotations

from typing import NoReturn


def unregistered(kind: object, question: str) -> NoReturn:
    """Raise TypeError: nobody registered what `question` (as "slackwater.room.module.function") is for this kind."""
    raise TypeError(f"{question} is not registered for {type(kind).__qualname__}")
