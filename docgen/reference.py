"""The pages that are generated from the code: messages, keys, commands, metrics, Python, tests of the semantics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docgen import command_pages, key_pages, message_pages, python_pages, semantics_page

PAGES: Mapping[str, Callable[[], str]] = {
    **message_pages.PAGES,
    **key_pages.PAGES,
    **command_pages.PAGES,
    **python_pages.PAGES,
    **semantics_page.PAGES,
}
