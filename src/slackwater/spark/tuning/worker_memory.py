"""Keep memory pages and modules in the Python workers between epochs.

Returning pages to the system and faulting them in again takes more than a tenth of an epoch's time. Memory for rows is
allocated by glibc (NumPy, compiled loops) and by the jemalloc of Polars. Both are configured to keep pages, up to a
limit.

Spark's worker runs a full garbage collection after every task. The modules that tasks need consist of 165,000 objects,
so a collection takes as long as an epoch of a few thousand rows. Objects that exist after the first tasks are therefore
frozen, which exempts them from collection.

Spark 4.0 also invalidates the caches of all importers before every task. The importers of Spark's own zip files would
then look up a thousand names again, so they are removed after every task.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import zipimport

from slackwater.tuning_switches import is_enabled

# Polars reads the variable when it is imported, so it must be set before Spark starts the workers
_ENVIRONMENT = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:60000,muzzy_decay_ms:60000"}
KEPT_BYTES = 256 << 20  # free memory to keep at the end of glibc's heap
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_LARGEST_ON_HEAP = 32 << 20  # glibc's maximum
_is_configured = False
_tasks = 0  # the number of tasks that this process has run


def environment() -> dict[str, str]:
    """Return the environment variables to set for the workers."""
    return _ENVIRONMENT if is_enabled("worker_memory") else {}


def prepare_worker() -> None:
    """Configure the process of a worker. This must happen before Polars is imported."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Configure this process to keep freed memory. This has an effect only once, and only if the C library is glibc."""
    global _is_configured
    if _is_configured or not is_enabled("worker_memory"):
        return
    _is_configured = True
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_TOP_PAD, 16 << 20)


def exempt_objects_from_gc() -> None:
    """Count a task. After the first, second, fourth, eighth, … task, exempt all live objects from garbage collection.

    A single exemption is not enough, because later tasks import more modules. Garbage is collected first.
    """
    global _tasks
    if not is_enabled("worker_memory"):
        return
    _tasks += 1
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]  # the next import creates it again
    if _tasks & (_tasks - 1) == 0:
        gc.collect()
        gc.freeze()
