"""Which part of a table of cases `make test` takes; `make test-all` takes all of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def select_cases(cases: Iterable[Any], keep: int = 1) -> list[Any]:
    """The cases of a parametrized test, of which all but the first `keep` are exhaustive."""
    if keep < 1:
        raise ValueError(f"found keep={keep}, expected at least 1: each exhaustive case has a sibling in `make test`")
    return [case if n < keep else _exhaustive(case) for n, case in enumerate(cases)]


def exhaustive(beside: str) -> pytest.MarkDecorator:
    """A dear test that `make test` leaves out; `beside` is the test of the same promise that it takes, "file.py::test_name"."""
    return pytest.mark.exhaustive(beside)


def _exhaustive(case: Any) -> Any:
    values, marks, name = (case.values, case.marks, case.id) if hasattr(case, "marks") else (case, (), None)
    values = values if isinstance(values, tuple) else (values,)
    return pytest.param(*values, marks=[*marks, pytest.mark.exhaustive], id=name)
