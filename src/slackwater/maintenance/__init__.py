"""State maintenance: sizes, history, verification, compaction and offset resets.

Operations that would disturb a runner fail while one is active.

May import: config, connectors, core, engine, errors, evolution, joins, operators, query, state, storage, watermark,
windows.
"""

from __future__ import annotations

import time

from slackwater.maintenance.verify_rows import VerifyReport
from slackwater.state.protocol import StateStore


def verify_state(store: StateStore) -> VerifyReport:
    """Check all files or tables that the commits of a state need, without taking a lock or changing anything.

    Raises StartError or StateError only if nothing can be checked, for example if the database is unreachable.
    """
    from slackwater.maintenance.verify_state_files import verify_state_files
    from slackwater.state.files.store import FilesStore
    from slackwater.state.postgres.store import PostgresStore

    began = time.monotonic()
    if isinstance(store, FilesStore):
        report = verify_state_files(store)
    else:
        from slackwater.maintenance.verify_postgres_store import verify_postgres

        assert isinstance(store, PostgresStore)
        report = verify_postgres(store)
    report.seconds = time.monotonic() - began
    return report
