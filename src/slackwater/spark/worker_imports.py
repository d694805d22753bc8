"""Import the modules that Python workers need.

A worker imports this module first, so it imports nothing heavy. Garbage collection is off during the other imports. It would
take a seventh of their time, and find nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slackwater.spark.tuning import worker_memory

if TYPE_CHECKING:
    import pyarrow as pa


def prepare_modules(has_sessions: bool, reads_files: bool) -> None:
    """Import the modules that run tasks, and load or compile their loops.

    Args:
        has_sessions: Whether to load the loops that build sessions.
        reads_files: Whether workers may read Parquet files.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        from slackwater.operators import registry
        from slackwater.spark import worker_tasks

        assert registry and worker_tasks
        if has_sessions:
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


def import_in_job(has_sessions: bool, reads_files: bool, numbers: Iterable[int]) -> Iterable[int]:
    """Import modules in a job without SQL, and return the numbers of the partition."""
    worker_memory.prepare_worker()
    prepare_modules(has_sessions, reads_files)
    return numbers


def import_in_query(has_sessions: bool, reads_files: bool, table: pa.Table) -> str:
    """Import modules in a task of a query, and return an empty report."""
    prepare_modules(has_sessions, reads_files)
    return ""
