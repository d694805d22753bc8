"""`make reference`: write the pages and pictures that are made."""

from __future__ import annotations

from docgen.pictures import PICTURES
from docgen.reference import PAGES
from docgen.sources import ROOT

for folder, documents in ((ROOT / "docs", PAGES), (ROOT / "docs" / "learn", PICTURES)):
    for name, text in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text())
