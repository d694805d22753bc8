"""`slackwater state verify`: whether a state is what was written, and what can be done where it is not."""

from __future__ import annotations

import time

from slackwater.maintenance.verify_report import Problem, VerifyReport
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import StateStore


def verify_state(store: StateStore) -> VerifyReport:
    """Check everything that a state's kept commits need. Takes no lock and changes nothing; raises StartError, StateError
    only where there is nothing to look at (a database that does not answer)."""
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
