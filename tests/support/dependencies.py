"""What no package registry brings: skipped by name in `make test`, a failure in `make test-all` and where CI is set."""

from __future__ import annotations

import os

import pytest


def require_dependency(dependency: str, available: bool, how: str) -> None:
    """Go on where it is there. `how`: the command that brings it."""
    if available:
        return
    message = f"there is no {dependency} on this machine; get it with: {how}"
    if os.environ.get("CI") or os.environ.get("SLACKWATER_TEST_ALL"):
        pytest.fail(f"{message} (`make test` goes without)", pytrace=False)
    pytest.skip(message)
