"""Local copies of staged rows, on the machine that staged them. Readers on that machine do not fetch the rows again.

The commit records the token of a copy, which locates it, and its checksum, which verifies it. Missing copies are fetched
from the database.
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
from slackwater.storage.arrow_files import open_arrow
from slackwater.storage.file_cache import FileCache

MOST_BYTES = 256 << 20  # limit for the tables that a process keeps open, whether mapped or fetched
_open: OrderedDict[str, pa.Table] = OrderedDict()
_mine: dict[tuple[str, str, int], set[str]] = {}  # tokens of the copies that this process wrote, by shard
_lock = Lock()  # the driver emits in several threads


def _file(token: str) -> str:
    return f"{token}.arrow"


def store_copy(token: str, content: Any, owner: tuple[str, str, int], in_use: Collection[str]) -> None:
    """Store a copy of staged rows. If that fails, readers fetch the rows from the database.

    Earlier copies of the shard that are no longer in use are deleted: their rows were merged, or their epoch was not
    committed.

    Args:
        owner: The database, the table and the number of the shard.
        in_use: The other tokens of the shard that are still in use.
    """
    with _lock:
        before = _mine.get(owner, set())
        _mine[owner] = before & set(in_use) | {token}
    forget_copies(before - _mine[owner])
    with suppress(SlackwaterError):
        FileCache("postgres").add(_file(token), content)


def find_copy(meta: SegmentMeta) -> pa.Table | None:
    """Return the rows of a token, sorted by `__h`; None if this machine has no copy."""
    with _lock:
        if (table := _open.get(meta.file)) is not None:
            _open.move_to_end(meta.file)
            return table
    if not meta.checksum:
        return None
    with suppress(SlackwaterError):
        cache = FileCache("postgres")
        if cache.has_copy(_file(meta.file), meta.checksum):
            return keep_table_open(meta.file, open_arrow(cache.path(_file(meta.file))))
    return None


def keep_table_open(token: str, table: pa.Table) -> pa.Table:
    """Keep the open table of a token for later use in this process, and return the table."""
    with _lock:
        _open[token] = table
        while len(_open) > 1 and sum(t.nbytes for t in _open.values()) > MOST_BYTES:
            _open.popitem(last=False)
    return table


def forget_copies(tokens: Collection[str]) -> None:
    """Delete the copies of the rows with these tokens."""
    with _lock:
        for token in tokens:
            _open.pop(token, None)
    with suppress(SlackwaterError, OSError):
        if tokens:
            FileCache("postgres").discard(map(_file, tokens))
