"""What allocators of the Python workers keep between epochs: an epoch frees what the next one needs again.

Giving pages back and faulting them in anew costs an epoch more than a tenth of its time. Two allocators hold the rows: glibc's
(NumPy, compiled loops) and Polars' own jemalloc; each is told to keep pages, up to a bound.
"""

from __future__ import annotations

import ctypes

# read when Polars is first imported, so it is set for the processes that Spark starts
ENVIRONMENT = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:60000,muzzy_decay_ms:60000"}
KEPT_BYTES = 256 << 20  # free memory at the end of glibc's heap
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_LARGEST_ON_HEAP = 32 << 20  # glibc takes no more
_told = False


def keep_pages() -> None:
    """Let this process keep freed memory; once, and only where the C library is glibc."""
    global _told
    if _told:
        return
    _told = True
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_TOP_PAD, 16 << 20)
