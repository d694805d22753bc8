"""Work around a bug in PyIceberg 0.12, which writes and reads NULL lists and maps of structs as empty ones.

PyIceberg's visitor rebuilds such arrays from their offsets, without their validity. A patch of the visitor, for the
entire process, restores the validity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pyarrow as pa

_PATCHED = "_slackwater_keeps_nulls"


def patch_visitor() -> None:
    """Patch the visitor, once."""
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    visitor: Any = ArrowProjectionVisitor
    if not getattr(visitor, _PATCHED, False):
        visitor.list, visitor.map = _restoring_nulls(visitor.list), _restoring_nulls(visitor.map)
        setattr(visitor, _PATCHED, True)


def _restoring_nulls(projected: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(projected)
    def wrapper(self: Any, kind: Any, original: Any, *parts: Any) -> Any:
        return _with_nulls(projected(self, kind, original, *parts), original)

    return wrapper


def _with_nulls(projected: Any, original: Any) -> Any:
    if projected is None or projected.null_count == original.null_count:
        return projected
    offsets = pa.array(projected.offsets.to_numpy(), projected.offsets.type)  # a slice of offsets takes no mask
    mask = original.is_null()
    if isinstance(projected, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, projected.keys, projected.items, projected.type, mask=mask)
    return type(projected).from_arrays(offsets, projected.values, projected.type, mask=mask)
