"""The pages that are generated from the code: messages, keys, commands, metrics, Python, tests of the semantics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docgen import (
    command_pages,
    config_key_and_metric_pages,
    error_and_warning_pages,
    python_api_pages,
    semantics_tests_page,
)

PAGES: Mapping[str, Callable[[], str]] = {
    **error_and_warning_pages.PAGES,
    **config_key_and_metric_pages.PAGES,
    **command_pages.PAGES,
    **python_api_pages.PAGES,
    **semantics_tests_page.PAGES,
}
