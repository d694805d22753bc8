"""Dependencies outside package registries. Without them, `make test` skips tests, and `make test-all` and CI fail."""

from __future__ import annotations

import os

import pytest


def skip_or_fail_without_dependency(dependency: str, available: bool, how: str) -> None:
    """Skip or fail the test unless the dependency is available. `how`: the command that installs it."""
    if available:
        return
    message = f"there is no {dependency} on this machine; get it with: {how}"
    if os.environ.get("CI") or os.environ.get("SLACKWATER_TEST_ALL"):
        pytest.fail(f"{message} (`make test` goes without)", pytrace=False)
    pytest.skip(message)
