"""Loops over rows, compiled by Numba: beside the source, once per machine.

A module of compiled loops is imported where its loops are first needed: Numba takes a third of a second to import, and
neither `import slackwater` nor `slackwater check` runs a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The function as machine code, from its first call on, beside which other threads run; it is kept for other processes.

    It is kept beside the source, else in the user's cache directory. Where neither can be written each process compiles anew.
    A constant from another module is compiled in, and a change to it would not be noticed: such a loop takes it as an argument.
    """
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # Numba found no directory to keep it in
        return cast(F, njit(nogil=True)(function))


def inlined(function: F) -> F:
    """Part of a compiled function, in whose place it is put. Within a loop give it numbers: references to arrays would be counted."""
    return cast(F, njit(inline="always")(function))
