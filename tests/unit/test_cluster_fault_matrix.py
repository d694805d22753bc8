"""The fault matrix of a cluster: the order of the cells, the rows of the page, and the counts of requests."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.matrices.cluster_fault_matrix import (
    FAULTS,
    KINDS,
    STORES,
    count_requests_by_folder,
    interleave_cells_by_store,
    requests_per_epoch,
)
from tests.e2e.matrices.docs_results_table import DocsResultsTable


def test_matrix_has_each_combination_once_and_starts_with_every_kind_and_fault() -> None:
    cells = list(interleave_cells_by_store(KINDS, list(STORES), FAULTS))
    expected = {(k, s, f) for k in KINDS for s in STORES for f in FAULTS if f != "storage" or s == "s3"}
    assert len(cells) == len(expected) == 52 and set(cells) == expected
    first = cells[: len(KINDS) * len(FAULTS)]
    assert {(k, f) for k, _, f in first} == {(k, f) for k in KINDS for f in FAULTS}
    assert {(s, f) for _, s, f in first} == {(s, f) for _, s, f in expected}
    assert list(interleave_cells_by_store(["join"], ["files"], FAULTS)) == [("join", "files", f) for f in FAULTS[:-1]]


def test_new_result_row_replaces_only_the_row_of_the_same_kind_and_fault(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- cluster -->\n\n## Next\n\n<!-- kills -->\n\n| a |\n")
    table = DocsResultsTable("cluster", ["kind", "fault", "lost"], 2, page)
    table.add_row("join", "worker", 1)
    table.add_row("join", "driver", 0)
    DocsResultsTable("cluster", ["kind", "fault", "lost"], 2, page).add_row("join", "worker", 12345)
    rows = "| kind | fault | lost |\n|---|---|---|\n| join | driver | 0 |\n| join | worker | 12,345 |\n"
    assert (
        table.has_row("join", "driver")
        and not table.has_row("join", "executor")
        and not DocsResultsTable("cluster", [], 2, None).has_row("a", "b")
    )
    assert page.read_text() == f"before\n\n<!-- cluster -->\n\n{rows}\n## Next\n\n<!-- kills -->\n\n| a |\n"


def test_object_store_requests_are_counted_by_method_and_folder() -> None:
    seen = [
        ("PUT", "/b/state/p/segments/1-0.arrow"),
        ("PUT", "/b/state/p/segments/1-1.arrow"),
        ("PUT", "/b/state/p/manifests/1.json"),
        ("PUT", "/b/out/p-1.parquet"),
        ("PUT", "/b/out/_slackwater/p.json"),
        ("GET", "/b?list-type=2&prefix=state"),
    ]
    counts = count_requests_by_folder(seen)
    assert counts == {"PUT segments": 2, "PUT manifests": 1, "PUT out": 2, "GET list": 1}
    assert (
        requests_per_epoch(counts, ("segments",), 4) == 0.5
        and requests_per_epoch(counts, ("manifests", "list"), 2) == 1
    )
