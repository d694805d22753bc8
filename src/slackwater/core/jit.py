"""Numba decorators for loops over rows. Compiled code is cached on disk, once per machine.

Modules with compiled loops are imported only where their loops are needed. Importing Numba takes a third of a second,
and neither `import slackwater` nor `slackwater check` runs a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function to machine code on its first call, to run without the GIL, and cache the code on disk.

    The cache is next to the source or, failing that, in the user's cache directory. If neither is writable, each
    process compiles the function again. Constants from other modules are compiled in, and the cache does not notice
    when they change, so pass them as arguments instead.
    """
    try:
        return cast(F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # Numba has no writable cache directory
        return cast(F, njit(nogil=True)(function))


def inlined(function: F) -> F:
    """Inline a function into the compiled functions that call it.

    Within loops, pass only numbers to such a function, because Numba would count the references to arrays.
    """
    return cast(F, njit(inline="always")(function))
