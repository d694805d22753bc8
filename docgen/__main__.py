"""`make reference`: write the generated pages and pictures."""

from __future__ import annotations

from docgen.error_and_warning_sources import ROOT
from docgen.generated_pages import PAGES
from docgen.learn_page_pictures import PICTURES

for folder, documents in ((ROOT / "docs", PAGES), (ROOT / "docs" / "learn", PICTURES)):
    for name, text in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text())
