"""A pytest plugin that collects and runs pipeline tests in TOML files (`docs/testing.md`).

The fixture `slackwater_test` runs a test file from a Python test: `slackwater_test("tests/clicks.toml")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slackwater.testing.case_runner import CaseResult


class _DiffersError(Exception):
    """Raised when the results of a test differ from its expectations."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a TOML file with `[[steps]]`, if it is in a folder `tests` or is named on the command line."""
    if file_path.suffix != ".toml" or not ("tests" in file_path.parts or parent.session.isinitpath(file_path)):
        return None
    if b"[[steps]]" not in file_path.read_bytes():  # cheap, without imports
        return None
    return CaseFile.from_parent(parent, path=file_path)


class CaseFile(pytest.File):
    """Collector of the pipeline test in a TOML file."""

    def collect(self) -> Iterable[pytest.Item]:
        yield CaseItem.from_parent(self, name=self.path.stem)


class CaseItem(pytest.Item):
    """The pipeline test in a TOML file."""

    def runtest(self) -> None:
        _check_case(self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from slackwater.errors import SlackwaterError

        if isinstance(excinfo.value, _DiffersError | SlackwaterError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, self.name


def _check_case(path: Path | str) -> CaseResult:
    """Run a test file and return its outcome. Raises _DiffersError if the results are not as expected."""
    from slackwater.testing import case_runner

    test = case_runner.LoadedCase.read(Path(path))
    with case_runner.quiet_logs():
        outcome = test.run(case_runner.spark_session([test.pipeline]))
    if not outcome.ok:
        raise _DiffersError("\n".join([f"{path}: the results are not as expected", *outcome.lines()]))
    return outcome


@pytest.fixture
def slackwater_test() -> Iterator[Callable[[Path | str], CaseResult]]:
    """Provide a function that runs a test file and raises an error if the results are not as expected."""
    yield _check_case


__all__ = ["CaseFile", "CaseItem"]
