"""NULL in lists and maps of structs: PyIceberg 0.12 makes an empty one of it, as it writes and as it reads.

Its visitor rebuilds such arrays from their offsets, which know nothing of NULL. Here it gets them back, for the whole process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pyarrow as pa

_MENDED = "_slackwater_keeps_nulls"


def patch_visitor() -> None:
    """Mend the visitor, once."""
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    visitor: Any = ArrowProjectionVisitor
    if not getattr(visitor, _MENDED, False):
        visitor.list, visitor.map = _kept(visitor.list), _kept(visitor.map)
        setattr(visitor, _MENDED, True)


def _kept(projected: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(projected)
    def found(self: Any, kind: Any, given: Any, *parts: Any) -> Any:
        return _with_nulls(projected(self, kind, given, *parts), given)

    return found


def _with_nulls(made: Any, given: Any) -> Any:
    if made is None or made.null_count == given.null_count:
        return made
    offsets = pa.array(made.offsets.to_numpy(), made.offsets.type)  # a slice of offsets takes no mask
    mask = given.is_null()
    if isinstance(made, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, made.keys, made.items, made.type, mask=mask)
    return type(made).from_arrays(offsets, made.values, made.type, mask=mask)
