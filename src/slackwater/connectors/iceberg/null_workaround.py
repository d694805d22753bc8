"""Work around a bug in PyIceberg 0.12: a NULL list or map that can contain structs is written and read as empty.

PyIceberg's `ArrowProjectionVisitor` rebuilds the Arrow arrays of such columns from their offsets, without their
validity. A patch of this class, for the entire process, restores the validity.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pyarrow as pa

_PATCHED = "_slackwater_keeps_nulls"


def patch_visitor() -> None:
    """Patch PyIceberg's `ArrowProjectionVisitor`, unless it is already patched."""
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
