"""The pages of the reference that are generated from the code: messages, keys, commands, metrics, Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docgen import command_pages, key_pages, message_pages, python_pages

PAGES: Mapping[str, Callable[[], str]] = {
    **message_pages.PAGES,
    **key_pages.PAGES,
    **command_pages.PAGES,
    **python_pages.PAGES,
}
