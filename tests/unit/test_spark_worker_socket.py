"""Workers acknowledge the first part of a task at once, so that Spark does not hold back the second part."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.support.loopback_connection import acknowledges_at_once, make_interactive, open_loopback_connection

from slackwater.connectors import spark_worker_socket
from slackwater.connectors.spark_worker_socket import send_acknowledgments

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has TCP_QUICKACK")


def test_worker_acknowledges_each_task_at_once() -> None:
    """Linux delays acknowledgments again after the worker has answered."""
    with open_loopback_connection() as (spark, worker):
        for _ in range(3):
            make_interactive(spark, worker)
            send_acknowledgments()
            assert acknowledges_at_once(worker)


def test_worker_ignores_descriptors_that_are_not_connections_any_longer() -> None:
    with open_loopback_connection() as (_, worker):
        pair, number = socket.socketpair(), worker.fileno()
        send_acknowledgments()
        assert number in spark_worker_socket._list_sockets(os.getpid())
        assert pair[0].fileno() in spark_worker_socket._list_sockets(os.getpid()), "other kinds of sockets are listed"
        worker.close()
        with Path(os.devnull).open() as file:
            assert file.fileno() == number, "the number is used again"
            send_acknowledgments()
        send_acknowledgments()
        for end in pair:
            end.close()
        send_acknowledgments()


def test_sockets_stay_open_and_usable() -> None:
    with open_loopback_connection() as (spark, worker):
        for _ in range(3):
            send_acknowledgments()
        spark.sendall(b"input")
        assert worker.recv(100) == b"input"
