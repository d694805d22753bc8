"""The fault matrix of a cluster: the order of the cells, the rows of the page, and the counts of requests."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.matrices.cluster_matrix import FAULTS, KINDS, STORES, in_turn, per, requests_of
from tests.e2e.matrices.results_table import Table


def test_each_cell_appears_once_and_early_cells_cover_all_kinds_and_faults() -> None:
    cells = list(in_turn(KINDS, list(STORES), FAULTS))
    expected = {(k, s, f) for k in KINDS for s in STORES for f in FAULTS if f != "storage" or s == "s3"}
    assert len(cells) == len(expected) == 52 and set(cells) == expected
    first = cells[: len(KINDS) * len(FAULTS)]
    assert {(k, f) for k, _, f in first} == {(k, f) for k in KINDS for f in FAULTS}
    assert {(s, f) for _, s, f in first} == {(s, f) for _, s, f in expected}
    assert list(in_turn(["join"], ["files"], FAULTS)) == [("join", "files", f) for f in FAULTS[:-1]]


def test_new_row_replaces_only_the_row_of_the_same_cell_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- cluster -->\n\n## Next\n\n<!-- kills -->\n\n| a |\n")
    table = Table("cluster", ["kind", "fault", "lost"], 2, page)
    table.add("join", "worker", 1)
    table.add("join", "driver", 0)
    Table("cluster", ["kind", "fault", "lost"], 2, page).add("join", "worker", 12345)
    rows = "| kind | fault | lost |\n|---|---|---|\n| join | driver | 0 |\n| join | worker | 12,345 |\n"
    assert (
        table.has("join", "driver")
        and not table.has("join", "executor")
        and not Table("cluster", [], 2, None).has("a", "b")
    )
    assert page.read_text() == f"before\n\n<!-- cluster -->\n\n{rows}\n## Next\n\n<!-- kills -->\n\n| a |\n"


def test_requests_are_counted_by_method_and_folder() -> None:
    seen = [
        ("PUT", "/b/state/p/segments/1-0.arrow"),
        ("PUT", "/b/state/p/segments/1-1.arrow"),
        ("PUT", "/b/state/p/manifests/1.json"),
        ("PUT", "/b/out/p-1.parquet"),
        ("PUT", "/b/out/_slackwater/p.json"),
        ("GET", "/b?list-type=2&prefix=state"),
    ]
    counts = requests_of(seen)
    assert counts == {"PUT segments": 2, "PUT manifests": 1, "PUT out": 2, "GET list": 1}
    assert per(counts, ("segments",), 4) == 0.5 and per(counts, ("manifests", "list"), 2) == 1
