"""What was staged, kept on the machine that staged it: rows that wait to be folded are read from there, not from the database.

A copy is known by its token and believed by its checksum, both of which the commit has; what is missing is asked of the database.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from threading import Lock
from typing import Any

import pyarrow as pa

from slackwater.errors import SlackwaterError
from slackwater.state.commit import SegmentMeta
from slackwater.state.files.arrow import open_arrow
from slackwater.state.files.cache import FileCache

MOST_BYTES = 256 << 20  # of tables that a process holds: copies that are mapped, and what it fetched
_open: OrderedDict[str, pa.Table] = OrderedDict()
_mine: dict[tuple[str, str, int], set[str]] = {}  # per shard: what this process kept
_lock = Lock()  # a driver emits in threads


def _file(token: str) -> str:
    return f"{token}.arrow"


def store_copy(token: str, content: Any, whose: tuple[str, str, int], named: Collection[str]) -> None:
    """Where no copy can be kept, the rows will be fetched. `whose`: database, table and shard, `named`: what this has beside it.

    What this process kept for the shard before, and is not named any more, goes: it was folded, or its epoch was not committed.
    """
    with _lock:
        before = _mine.get(whose, set())
        _mine[whose] = before & set(named) | {token}
    forget_copies(before - _mine[whose])
    with suppress(SlackwaterError):
        FileCache("postgres").add(_file(token), content)


def find_copy(meta: SegmentMeta) -> pa.Table | None:
    """The rows under a token, if they are on this machine; sorted by unit."""
    with _lock:
        if (table := _open.get(meta.file)) is not None:
            _open.move_to_end(meta.file)
            return table
    if not meta.checksum:
        return None
    with suppress(SlackwaterError):
        cache = FileCache("postgres")
        if cache.has_copy(_file(meta.file), meta.checksum):
            return hold_table(meta.file, open_arrow(cache.path(_file(meta.file))))
    return None


def hold_table(token: str, table: pa.Table) -> pa.Table:
    """Keep a table at hand in this process."""
    with _lock:
        _open[token] = table
        while len(_open) > 1 and sum(t.nbytes for t in _open.values()) > MOST_BYTES:
            _open.popitem(last=False)
    return table


def forget_copies(tokens: Collection[str]) -> None:
    """They were folded, or are of no use."""
    with _lock:
        for token in tokens:
            _open.pop(token, None)
    with suppress(SlackwaterError, OSError):
        if tokens:
            FileCache("postgres").forget(map(_file, tokens))
