"""What the Python workers keep between epochs: pages that the next epoch needs again, and modules that no collector need look at.

Giving pages back and faulting them in anew costs an epoch more than a tenth of its time. Two allocators hold the rows: glibc's
(NumPy, compiled loops) and Polars' own jemalloc; each is told to keep pages, up to a bound.

Spark's worker collects garbage behind every task, and looks at all objects for it: the modules that tasks need are 165,000 of them,
which takes as long as an epoch of a few thousand rows. What is there once tasks have run is there for good. And Spark 4.0 tells all importers
before every task to forget what they know: those of its own zip files then read a thousand names anew, if they are there.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import zipimport

# read when Polars is first imported, so it is set for the processes that Spark starts
ENVIRONMENT = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:60000,muzzy_decay_ms:60000"}
KEPT_BYTES = 256 << 20  # free memory at the end of glibc's heap
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_LARGEST_ON_HEAP = 32 << 20  # glibc takes no more
_is_configured = False
_tasks = 0  # of this process


def keep_pages() -> None:
    """Let this process keep freed memory; once, and only where the C library is glibc."""
    global _is_configured
    if _is_configured:
        return
    _is_configured = True
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_TOP_PAD, 16 << 20)


def freeze_objects() -> None:
    """A task has ended. Behind the first, second, fourth, eighth, ... of a process all objects that are no garbage are kept for good:
    later ones bring modules, too, and what they leave behind wrongly is little."""
    global _tasks
    _tasks += 1
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]  # the next import from there makes it again
    if _tasks & (_tasks - 1) == 0:
        gc.collect()
        gc.freeze()
