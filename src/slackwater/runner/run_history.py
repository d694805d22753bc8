"""Record each run of a pipeline in its state: when it started, and how it ended."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slackwater.errors import NewColumnsError, SlackwaterError
from slackwater.secrets import mask_secrets
from slackwater.state.protocol import StateStore
from slackwater.state.run_history import Outcome, Run, one_line

log = logging.getLogger("slackwater")


@contextmanager
def record_run(store: StateStore, stop: threading.Event, last_epoch: Callable[[], int], epoch: int) -> Iterator[None]:
    """Record a run that lasts as long as the block. The store must be open and locked.

    Args:
        stop: The event that stops the run. It decides whether the run is recorded as stopped or finished.
        last_epoch: Returns the last committed epoch at the end of the run.
        epoch: The last epoch committed before the run, or -1 if there is none.
    """
    run = Run(started_us=_now(), runner=f"process {os.getpid()} on {socket.gethostname()}", epoch=epoch)
    _write_run(store, run)

    def end(outcome: Outcome, error: BaseException | None = None) -> None:
        line = None if error is None else one_line(mask_secrets(str(error)) or type(error).__name__)
        ending = {"ended_us": _now(), "outcome": outcome, "last_epoch": last_epoch(), "error": line}
        _write_run(store, run.model_copy(update=ending))

    try:
        yield
    except NewColumnsError:
        end("restarted")
        raise
    except Exception as error:
        end("failed", error)
        raise
    except BaseException:  # mostly Ctrl-C
        end("stopped")
        raise
    end("stopped" if stop.is_set() else "finished")


def _write_run(store: StateStore, run: Run) -> None:
    try:
        store.save_run(run)
    except (SlackwaterError, OSError) as error:
        log.debug("the history of runs cannot be written: %s", error)


def _now() -> int:
    return time.time_ns() // 1000
