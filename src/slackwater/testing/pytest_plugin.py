"""For pytest: tests of pipelines that are TOML files (`docs/testing.md`) are collected and run like any other.

The fixture `slackwater_test` runs one from Python: `slackwater_test("tests/clicks.toml")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slackwater.testing.case_runner import CaseResult


class _DiffersError(Exception):
    """What came is not what a test expects."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A TOML file with steps, in a folder `tests` or named on the command line."""
    if file_path.suffix != ".toml" or not ("tests" in file_path.parts or parent.session.isinitpath(file_path)):
        return None
    if b"[[steps]]" not in file_path.read_bytes():  # before anything is imported
        return None
    return CaseFile.from_parent(parent, path=file_path)


class CaseFile(pytest.File):
    """A file that is a test."""

    def collect(self) -> Iterable[pytest.Item]:
        yield CaseItem.from_parent(self, name=self.path.stem)


class CaseItem(pytest.Item):
    """A test of a pipeline."""

    def runtest(self) -> None:
        check_case(self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from slackwater.errors import SlackwaterError

        if isinstance(excinfo.value, _DiffersError | SlackwaterError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, self.name


def check_case(path: Path | str) -> CaseResult:
    """Run a test, and raise what differs."""
    from slackwater.testing import case_runner

    test = case_runner.CaseTest.read(Path(path))
    with case_runner.quiet_logs():
        outcome = test.run(case_runner.spark_session([test.pipeline]))
    if not outcome.ok:
        raise _DiffersError("\n".join([f"{path}: is not as expected", *outcome.lines()]))
    return outcome


@pytest.fixture
def slackwater_test() -> Iterator[Callable[[Path | str], CaseResult]]:
    """Runs a test that is a file; raises where what came is not what it expects."""
    yield check_case


__all__ = ["CaseFile", "CaseItem", "check_case"]
