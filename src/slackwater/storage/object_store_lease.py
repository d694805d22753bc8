"""The lock of a state in an object store: a lease, which is an object that its runner replaces regularly.

    runner   put if absent ── replace if unchanged ── replace ── … ── release

Another process takes over the lease, also by "replace if unchanged", in one of these cases:

    - the runner released it, or its process ended on this machine
    - it expired more than SKEW_S ago by the local clock
    - it did not change for LEASE_S + SKEW_S while the other process watched it

If two processes put the lease at the same time, the store accepts only one. A runner whose lease has expired renews it
before and after a commit, and stops if another runner holds it. Clocks affect only how long startup waits. Commits do
not depend on clocks, because the object of an epoch is only put if absent.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from slackwater.core.humanize import format_iso
from slackwater.errors import FencedError, LockHeldError, SlackwaterError
from slackwater.storage.object_client import ObjectClient

# durations in seconds
LEASE_S = 30.0  # validity of a lease after its last renewal
RENEW_S = 10.0  # interval between renewals
ANSWER_S = 5.0  # timeout of a request; several requests must fit into the remaining time of a lease
SKEW_S = 5.0  # clock difference up to which no process takes over a valid lease
RELEASE_S = 5.0  # how long `close` waits for the release
LOOK_S = 1.0  # interval at which a waiting process reads the lease

log = logging.getLogger("slackwater")
_held: set[str] = set()  # tokens of the leases that this process holds


class ObjectStoreLease:
    """A `StorageLock` in an object store. After `take`, a thread renews it until it is closed or garbage-collected."""

    def __init__(self, client: ObjectClient, file: str) -> None:
        self._client, self._file = client, file
        self.token = uuid.uuid4().hex
        self._version = ""
        self._until = 0.0  # expiry on the monotonic clock
        self._lost = ""  # the name of the process that took over
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        _held.add(self.token)
        weakref.finalize(self, _end_lease, self._ended, self.token)

    @property
    def full_name(self) -> str:
        return f"{self._client.url}/{self._file}"

    def take(self) -> None:
        """Take the lease, after waiting for an abandoned one to expire.

        Raises LockHeldError if another process holds the lease, and StateError or EpochError if a request fails.
        """
        watched, since = None, time.monotonic()
        while True:
            began = time.monotonic()
            current = self._read()
            if current is None:
                version = self._client.create(self._file, self._encode(True))
            else:
                content, version = current
                if version != watched:
                    if watched is not None or _is_alive(content):
                        raise _held_error(content, self.full_name)
                    watched, since = version, time.monotonic()
                lapsed = began - since > LEASE_S + SKEW_S
                if not (lapsed or _is_over(content)):
                    time.sleep(LOOK_S)
                    continue
                version = self._client.replace(self._file, self._encode(True), version)
            if version is not None:
                self._version, self._until = version, began + LEASE_S
                thread = threading.Thread(target=_renew_on, args=(weakref.ref(self), self._ended), daemon=True)
                thread.start()
                return
            watched = None  # another process was faster

    def _read(self) -> tuple[dict[str, Any], str] | None:
        try:
            stored = self._client.get(self._file)
        except FileNotFoundError:
            return None
        return parse_lease(bytes(stored.content)), stored.version

    def _encode(self, held: bool) -> bytes:
        """Return the content of the lease, which is different on each call. `held`: False to release the lease."""
        until = time.time_ns() // 1000 + int(LEASE_S * 1e6)
        fields = {
            "token": self.token,
            "held": held,
            "holder": _process_name(),
            "until_us": until,
            "turn": uuid.uuid4().hex,
        }
        return json.dumps(fields | _machine()).encode()

    def renew(self) -> None:
        """Renew the lease, or record that another process took it.

        Raises EpochError or StateError if the outcome is unknown.
        """
        with self._renewing:
            if self._lost or self._ended.is_set():
                return
            began = time.monotonic()
            version = self._client.rewrite(self._file, self._encode(True), self._version)
            if version is None:
                current = self._read()
                self._lost = (
                    _holder_name(current[0]) if current else "another runner, or someone who removed the lease,"
                )
                return
            self._version, self._until = version, began + LEASE_S

    def confirm(self, doing: str) -> None:
        if not self._lost and time.monotonic() > self._until:
            self.renew()
        if self._lost:
            raise FencedError(
                f"this runner can no longer {doing}: it did not renew its lease {self.full_name} for {LEASE_S:g} "
                f"seconds, and {self._lost} took over; this runner is stopping, and the other one continues from the "
                "last commit"
            )

    def close(self) -> None:
        """Release the lease, waiting at most RELEASE_S seconds. If this fails, the lease expires."""
        self._ended.set()
        release = threading.Thread(target=self._release, daemon=True)
        release.start()
        release.join(RELEASE_S)
        _held.discard(self.token)

    def _release(self) -> None:
        with self._renewing, suppress(SlackwaterError):
            if self._version and not self._lost:
                self._client.rewrite(self._file, self._encode(False), self._version)


def _end_lease(ended: threading.Event, token: str) -> None:
    ended.set()
    _held.discard(token)


def _renew_on(lease: weakref.ref[ObjectStoreLease], ended: threading.Event) -> None:
    """Renew a lease until it is closed or garbage-collected."""
    while not ended.wait(RENEW_S):
        held = lease()
        if held is None:
            return
        try:
            held.renew()
        except SlackwaterError as error:
            log.warning("%s; the next attempt to renew the lease is in %g seconds", error, RENEW_S)
        del held


def lease_holder(client: ObjectClient, file: str) -> str | None:
    """Return the name of the process that holds the lease, or None if it is free. Raises StateError."""
    try:
        content = parse_lease(bytes(client.get(file).content))
    except FileNotFoundError:
        return None
    return None if _is_over(content) else _holder_name(content)


def parse_lease(content: bytes) -> dict[str, Any]:
    """Parse the content of a lease. A damaged lease counts as held without an expiry time."""
    try:
        lease = json.loads(content)
    except ValueError:
        lease = None
    return lease if isinstance(lease, dict) else {"held": True, "until_us": 1 << 62}


def _is_over(content: dict[str, Any]) -> bool:
    if not content.get("held") or _is_gone(content):
        return True
    until = content.get("until_us")
    return isinstance(until, int) and time.time_ns() // 1000 > until + int(SKEW_S * 1e6)


def _same_machine(content: dict[str, Any]) -> bool:
    """Return whether a process on this machine wrote the lease since the last boot, in the same process namespace."""
    here = _machine()
    return bool(here["boot"]) and all(content.get(k) == here[k] for k in ("boot", "processes"))


def _is_gone(content: dict[str, Any]) -> bool:
    if not _same_machine(content):
        return False
    pid, began = content.get("pid"), content.get("began")
    if pid == os.getpid() and began == _process_start(os.getpid()):
        return content.get("token") not in _held
    return not isinstance(pid, int) or _process_start(pid) != began


def _is_alive(content: dict[str, Any]) -> bool:
    return bool(content.get("held")) and _same_machine(content) and not _is_gone(content)


def _machine() -> dict[str, Any]:
    """Return fields that identify this process across machines: boot id, process namespace, process id and start time.

    Fields that the operating system does not provide are empty.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = processes = ""
    return {"boot": boot, "processes": processes, "pid": os.getpid(), "began": _process_start(os.getpid())}


def _process_start(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, or "" if it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _process_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _holder_name(content: dict[str, Any]) -> str:
    return str(content.get("holder") or "another process")[:200]


def _held_error(content: dict[str, Any], shown: str) -> LockHeldError:
    until = content.get("until_us")
    when = f" until at least {format_iso(until)}" if isinstance(until, int) and until < 1 << 52 else ""
    return LockHeldError(
        f"pipeline is already running: {_holder_name(content)} holds the lock {shown}{when}; stop that process first, "
        "because a pipeline can have only one runner at a time"
    )
