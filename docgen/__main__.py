"""`make reference`: write the generated pages and pictures."""

from __future__ import annotations

from docgen.message_sources import ROOT
from docgen.pictures import PICTURES
from docgen.reference import PAGES

for folder, documents in ((ROOT / "docs", PAGES), (ROOT / "docs" / "learn", PICTURES)):
    for name, text in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text())
