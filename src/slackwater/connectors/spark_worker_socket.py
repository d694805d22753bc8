"""Make Spark send the input of a Python task without a delay.

Spark sends a task to a worker in two parts: what to run, and the input. Spark's socket holds back the second part until the
worker acknowledges the first (Nagle's algorithm). The worker has nothing to answer yet, so Linux delays the acknowledgment
by 40 ms, in case an answer can carry it:

    Spark    ── what to run ──▶                                ── input ──▶
    worker                     waits for input … 40 ms … ACK ─▶

`send_acknowledgments` makes Linux send the acknowledgment at once.
"""

from __future__ import annotations

import os
import socket
import stat
from functools import cache
from pathlib import Path

from slackwater.tuning_switches import is_enabled


def send_acknowledgments() -> None:
    """Make Linux send pending TCP acknowledgments at once. Call this function before a task reads its input."""
    if not hasattr(socket, "TCP_QUICKACK") or not is_enabled("quick_ack"):  # only Linux has it
        return
    for number in _list_sockets(os.getpid()):
        try:
            connection = socket.socket(fileno=number)
        except OSError:
            continue  # closed in the meantime
        try:
            if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        finally:
            connection.detach()


@cache
def _list_sockets(process: int) -> tuple[int, ...]:
    """Return the file descriptors of the sockets that were open at the first call. They include the connection to Spark.

    `process`: the id of this process, because a forked process has other sockets.
    """
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return tuple(number for number in numbers if _is_socket(number))


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
