"""Names of files as people write them."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def local_name(uri: str) -> str:
    """The path of a file on this machine, given as a URI (`file:///in/a%20b.csv` -> `/in/a b.csv`); any other name as it is."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
