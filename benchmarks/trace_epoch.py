"""`python -m benchmarks.trace_epoch`: show which modules an epoch enters, and how often control moves between modules.

The epoch runs in this process and computes sessions of three rows, with a state in files. Ten epochs run before it, so that imports
and compilation do not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import slackwater as sw
from slackwater.testing import LocalPipeline

_PACKAGE = str(Path(sw.__file__).parent)
_TEST_SUPPORT = "/testing/"  # the virtual clock and the sources of a test are not part of an epoch


@dataclass
class ModuleTrace:
    """The calls of functions by module, and the changes of control from one module to another."""

    calls: Counter[str] = field(default_factory=Counter)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _stack: list[str] = field(default_factory=lambda: [""])

    def record_event(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) or _TEST_SUPPORT in file or event not in ("call", "return"):
            return
        if event == "call":
            module = file[len(_PACKAGE) + 1 :]
            self.calls[module] += 1
            self._enter_module(module)
            self._stack.append(module)
        elif len(self._stack) > 1:
            leaving = self._stack.pop()
            if self._stack[-1] not in ("", leaving):
                self.changes[leaving, self._stack[-1]] += 1

    def _enter_module(self, module: str) -> None:
        if self._stack[-1] not in ("", module):
            self.changes[self._stack[-1], module] += 1


@contextmanager
def trace_epochs() -> Iterator[ModuleTrace]:
    trace = ModuleTrace()
    sys.setprofile(trace.record_event)
    try:
        yield trace
    finally:
        sys.setprofile(None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_epoch", description=__doc__)
    parser.add_argument("--modules", action="store_true", help="list the modules, with the calls of their functions")
    parser.add_argument(
        "--changes", type=int, default=0, metavar="N", help="list the N most frequent changes of module"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slackwater-trace-") as home:
        window = sw.Window(
            kind="session",
            gap_ms="10s",
            max_session_duration_ms="10m",
            event_time_column="ts",
            group_by=["user"],
            aggregations=[sw.Aggregation(agg="count", as_="n"), sw.Aggregation(agg="sum", column="x", as_="total")],
        )
        with LocalPipeline(window, {"user": "string", "x": "bigint"}, state_dir=f"{home}/state") as pipeline:
            for epoch in range(11):
                rows = [{"ts": f"2024-03-01T09:{epoch:02}:0{n}Z", "user": f"u{n}", "x": n} for n in range(3)]
                if epoch < 10:
                    pipeline.pipe(rows)
                    continue
                with trace_epochs() as trace:
                    pipeline.pipe(rows)
    print(
        f"{len(trace.calls)} modules, {sum(trace.changes.values()):,} changes of module, {sum(trace.calls.values()):,} calls"
    )
    for module, count in trace.calls.most_common() if options.modules else ():
        print(f"{count:>8,}  {module}")
    for (origin, target), count in trace.changes.most_common(options.changes):
        print(f"{count:>8,}  {origin} -> {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
