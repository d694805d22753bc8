"""`slackwater state verify`: checks a state for damage, and says how to repair it."""

from __future__ import annotations

import time

from slackwater.maintenance.verify_report import Problem, VerifyReport
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import StateStore


def verify_state(store: StateStore) -> VerifyReport:
    """Check all files or tables that the commits of a state need, without taking a lock or changing anything.

    Raises StartError or StateError only if nothing can be checked, for example if the database is unreachable.
    """
    began = time.monotonic()
    if isinstance(store, FilesStore):
        from slackwater.maintenance.verify_files import verify_files

        report = verify_files(store)
    else:
        from slackwater.maintenance.verify_postgres import verify_postgres
        from slackwater.state.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        report = verify_postgres(store)
    report.seconds = time.monotonic() - began
    return report


__all__ = ["Problem", "VerifyReport", "verify_state"]
