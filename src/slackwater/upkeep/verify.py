"""`slackwater state verify`: whether a state is what was written, and what can be done where it is not."""

from __future__ import annotations

import time

from slackwater.state.files import FilesStore
from slackwater.state.protocol import StateStore
from slackwater.upkeep.report import Problem, Report


def verify(store: StateStore) -> Report:
    """Check everything that a state's kept commits need. Takes no lock and changes nothing; raises StartError, StateError
    only where there is nothing to look at (a database that does not answer)."""
    began = time.monotonic()
    if isinstance(store, FilesStore):
        from slackwater.upkeep.verify_files import verify_files

        report = verify_files(store)
    else:
        from slackwater.state.postgres import PostgresStore
        from slackwater.upkeep.verify_postgres import verify_postgres

        assert isinstance(store, PostgresStore)
        report = verify_postgres(store)
    report.seconds = time.monotonic() - began
    return report


__all__ = ["Problem", "Report", "verify"]
