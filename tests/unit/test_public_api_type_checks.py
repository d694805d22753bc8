"""Python code of the README, the docs and examples/ under mypy and pyright, without the mypy plugin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.case_selection import exhaustive

import slackwater as sw
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import find_duration_keys, iterate_specs

ROOT = Path(__file__).resolve().parents[2]
WRONG = """
import slackwater as sw

sw.Window(kind="session", gap_ms=b"30m")
sw.Aggregation(agg="count")
sw.Source(nmae="events")
"""


HANDLE = """
import slackwater as sw
from slackwater.engine.observer import Status

one = sw.load("p.toml")
in_front: Status | None = sw.run(one, available_now=True)
behind: sw.Handle = sw.run(one, background=True)
latest: Status | None = behind.status
why: sw.WhyReport = behind.why({"user": None})
plan: sw.Plan = sw.describe(one)
"""


@pytest.fixture(scope="module")
def user_code_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the Python code of README, docs and examples, and a file with mistakes, outside of the project."""
    home = tmp_path_factory.mktemp("user")
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for i, text in enumerate(blocks):
        (home / f"readme_{i}.py").write_text(text)
    for page in (ROOT / "docs" / "notebooks.md", ROOT / "docs" / "monitoring.md"):
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        named = "" if "pipeline =" in blocks[0] else 'import slackwater as sw\npipeline = sw.load("p.toml")\n'
        (home / f"{page.stem}_page.py").write_text(named + "\n".join(blocks))
    (home / "handle.py").write_text(HANDLE)
    for path in (ROOT / "examples").glob("*.py"):
        (home / path.name).write_text(path.read_text())
    (home / "wrong.py").write_text(WRONG)
    (home / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    return home


def run_type_checker(home: Path, *command: str) -> str:
    process = subprocess.run([sys.executable, "-m", *command], cwd=home, capture_output=True, text=True, timeout=300)
    return process.stdout + process.stderr


def list_valid_files(home: Path) -> list[str]:
    return sorted(p.name for p in home.glob("*.py") if p.name not in ("wrong.py", "signatures.py"))


@exhaustive(beside="test_public_api_type_checks.py::test_pyright_accepts_the_readme_and_the_examples")
def test_mypy_accepts_the_readme_and_the_examples(user_code_folder: Path) -> None:
    report = run_type_checker(
        user_code_folder,
        "mypy",
        "--config-file",
        "mypy.ini",
        "--cache-dir",
        ".cache",
        *list_valid_files(user_code_folder),
    )
    assert report.startswith("Success: no issues found"), report


def test_mypy_reports_wrong_constructor_arguments(user_code_folder: Path) -> None:
    report = run_type_checker(
        user_code_folder, "mypy", "--config-file", "mypy.ini", "--cache-dir", ".cache", "wrong.py"
    )
    assert re.findall(r"^wrong.py:(\d+): error", report, re.MULTILINE) == ["4", "5", "6"], report


def test_pyright_accepts_the_readme_and_the_examples(user_code_folder: Path) -> None:
    report = run_type_checker(
        user_code_folder, "pyright", "--pythonpath", sys.executable, *list_valid_files(user_code_folder)
    )
    assert "0 errors" in report, report
    report = run_type_checker(user_code_folder, "pyright", "--pythonpath", sys.executable, "wrong.py")
    assert set(re.findall(r"wrong.py:(\d+):\d+ - error", report)) == {"4", "5", "6"}, report


def test_constructor_signatures_have_an_argument_for_every_key(user_code_folder: Path) -> None:
    """Each key is an argument, each duration is two arguments, and only required keys have no default."""
    specs = [spec for spec in {*iterate_specs(Pipeline)} if hasattr(sw, spec.__name__)]
    assert len(specs) == 12
    names = [spec.__name__ for spec in specs]
    (user_code_folder / "signatures.py").write_text(
        "import slackwater as sw\n" + "".join(f"reveal_type(sw.{n})\n" for n in names)
    )
    report = run_type_checker(
        user_code_folder, "mypy", "--config-file", "mypy.ini", "--cache-dir", ".cache", "signatures.py"
    )
    signatures = re.findall(r"Revealed type is \"def \(\*, (.*)\) -> ", report)
    python_names = {"as": "as_", "from": "from_", "class": "class_"}
    for spec, signature in zip(specs, signatures, strict=True):
        arguments = dict(re.findall(r"(?:^|, )(\w+): (?:[^=,\[]|\[[^\]]*\])*?( =)?(?=, \w+:|$)", signature))
        keys = {python_names.get(key, key): key for key in (*spec.KEYS, *find_duration_keys(spec))}
        assert set(arguments) == set(keys), (spec, signature)
        required = {name for name, default in arguments.items() if not default}
        units = find_duration_keys(spec).values()
        assert required == {name for name, key in keys.items() if key in spec.REQUIRED and key not in units}, spec
