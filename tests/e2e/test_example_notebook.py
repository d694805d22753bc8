"""The notebook examples/sessions/sessions.ipynb runs in its own kernel and shows the documented outputs."""

from __future__ import annotations

import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest
from tests.support.case_selection import exhaustive

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "sessions"


def test_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(FOLDER / "sessions.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(c.get("outputs") or c.get("execution_count") for c in notebook.cells)


@exhaustive(beside="test_docs_start_pages.py::test_background_run_behaves_as_documented")
def test_notebook_runs_and_shows_the_documented_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the client and its event loop
        from nbclient import NotebookClient

        folder = tmp_path / "sessions"
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("out", "state"))
        monkeypatch.setenv("SPARK_MASTER", "local[2]")
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        notebook = nbformat.read(folder / "sessions.ipynb", as_version=4)
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    shown = {c.source.splitlines()[-1]: c.outputs for c in notebook.cells if c.cell_type == "code"}

    def html(cell: str) -> str:
        (rendered,) = [o["data"]["text/html"] for o in shown[cell] if o["output_type"] == "execute_result"]
        return re.sub(r"<style>.*?</style>", "", rendered, flags=re.DOTALL)

    assert "read 1 source" in html("pipeline")
    assert "Delivery: exactly once" in html("plan")
    assert "3 emitted, 1 open" in _last_cell_output(notebook, "status = run.wait()")
    assert 'class="newest busy"' in html("sw.why(pipeline)")
    assert "user_id=u3" in html('run.why("user_id=u3")')
    assert html("sw.open_state(pipeline)").count('class="session open"') == 1
    assert "4 emitted, 0 open" in _last_cell_output(
        notebook, "run = sw.run(pipeline, background=True, available_now=True, flush=True)"
    )
    (frame,) = shown['pl.read_parquet("out/sessions/*.parquet").sort("window_start", "user_id")']
    assert "shape: (4, 6)" in frame["data"]["text/plain"]
    (error,) = [o for o in shown['sw.why(pipeline, "user=u1")'] if o["output_type"] == "error"]
    assert error["ename"] == "StartError"
    said = "\n".join(error["traceback"])
    assert 'did you mean "user_id"?' in said
    assert "docs/messages/commands.md#a-value-is-not-valid" in said
    assert "Traceback" not in said
    assert not any(
        o["output_type"] == "error" for cell, outputs in shown.items() if "user=u1" not in cell for o in outputs
    )
    assert (folder / "state").is_dir()


def _last_cell_output(notebook: Any, first_line: str) -> str:
    """Return the last output of the cell that begins with `first_line`."""
    (cell,) = [c for c in notebook.cells if c.source.startswith(first_line)]
    return str(cell.outputs[-1]["data"]["text/html"])
