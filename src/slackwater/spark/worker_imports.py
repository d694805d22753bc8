"""Import the modules that Python workers need.

This module imports nothing heavy itself, because a worker imports it before it runs one of its functions. Garbage
collection would take a seventh of the time of the imports, and find nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slackwater.spark.tuning import worker_memory

if TYPE_CHECKING:
    import pyarrow as pa


def import_modules(loops: bool, reads_files: bool) -> None:
    """Import the modules that run tasks, and load or compile their loops.

    Args:
        loops: Whether to load the loops that build sessions.
        reads_files: Whether workers may read Parquet files.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        from slackwater.operators import registry
        from slackwater.spark import worker_tasks

        assert registry and worker_tasks
        if loops:
            from slackwater.windows import session_ingest, session_loops

            assert session_ingest
            session_loops.compile_loops()
        if reads_files:
            import pyarrow.parquet

            from slackwater.core import numba_hashing

            assert pyarrow.parquet
            numba_hashing.compile_hash_loops()
    finally:
        if was_enabled:
            gc.enable()


def import_in_job(loops: bool, reads_files: bool, numbers: Iterable[int]) -> Iterable[int]:
    """Import modules in a job without SQL, and return the numbers of the partition."""
    worker_memory.prepare_worker()
    import_modules(loops, reads_files)
    return numbers


def import_in_query(loops: bool, reads_files: bool, table: pa.Table) -> str:
    """Import modules in a task of a query, and return an empty report."""
    import_modules(loops, reads_files)
    return ""
