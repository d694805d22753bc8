"""What tables are now, held against what a state knows of them: for `plan`, from their logs and catalogs, without Spark.

Each table is asked by a thread of its own, all at once: one that does not answer is told so, and holds up nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.source import Source
from slackwater.errors import SlackwaterError
from slackwater.evolution.change import Change, Comparison
from slackwater.runner.systems import system_of
from slackwater.runner.systems.base import C, System
from slackwater.sources.base import NoAnswerError
from slackwater.state.commit import Commit, SourceRecord

LONGEST_S = 10.0  # that all of them may take together


@dataclass
class _Asked:
    """One table. `refused`: why a start would not go on with it; `unknown`: why that is not known."""

    spec: Source
    changes: Sequence[Change] = ()
    refused: str | None = None
    unknown: str | None = ""

    def ask(self, system: System[C], record: SourceRecord) -> None:
        try:
            self.changes, self.unknown = system.changes(self.spec, record), None
        except NoAnswerError as error:
            self.unknown = str(error)
        except SlackwaterError as error:
            self.refused, self.unknown = str(error), None
        except Exception as error:  # a state is not trusted
            self.unknown = f'source "{self.spec.name}": its columns cannot be compared ({type(error).__name__})'


def with_tables(found: Comparison, pipeline: Pipeline, commit: Commit) -> Comparison:
    """A comparison, with what a start will find in the tables that the pipeline reads."""
    asked, threads = list[_Asked](), list[threading.Thread]()
    for spec in pipeline.sources:
        connection, record = resolve(spec.connection, pipeline.connections), commit.sources.get(spec.name)
        if connection is None or record is None or not system_of(connection).has_versions:
            continue
        asked.append(_Asked(spec))
        threads.append(threading.Thread(target=asked[-1].ask, args=(system_of(connection), record), daemon=True))
        threads[-1].start()
    end = time.monotonic() + LONGEST_S
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.0))
    late = f"did not answer within {LONGEST_S:g} s; what changed in its table is not known"
    return replace(
        found,
        changes=(*found.changes, *(change for one in asked for change in one.changes)),
        waits="; ".join(why for why in (found.waits, *(one.refused for one in asked)) if why) or None,
        unknown=tuple(one.unknown or f'source "{one.spec.name}" {late}' for one in asked if one.unknown is not None),
    )
