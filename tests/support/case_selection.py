"""Select the test cases that `make test` runs. `make test-all` runs all cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def select_cases(cases: Iterable[Any], keep: int = 1) -> list[Any]:
    """Return the cases of a parametrized test. All except the first `keep` cases are marked as exhaustive."""
    if keep < 1:
        raise ValueError(f"found keep={keep}, expected at least 1: each exhaustive case has a sibling in `make test`")
    return [case if n < keep else _mark_case_exhaustive(case) for n, case in enumerate(cases)]


def exhaustive(beside: str) -> pytest.MarkDecorator:
    """Mark an expensive test that `make test` skips.

    `beside` names a test of the same behaviour that `make test` runs, as "file.py::test_name".
    """
    return pytest.mark.exhaustive(beside)


def _mark_case_exhaustive(case: Any) -> Any:
    values, marks, name = (case.values, case.marks, case.id) if hasattr(case, "marks") else (case, (), None)
    values = values if isinstance(values, tuple) else (values,)
    return pytest.param(*values, marks=[*marks, pytest.mark.exhaustive], id=name)
