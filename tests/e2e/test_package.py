"""The published wheel and sdist contain everything they need, and the wheel works without the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from tests.support.case_selection import exhaustive

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PLAIN = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "COV_"))}


def run_command(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=PLAIN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def list_source_files() -> list[str]:
    """Return the files that git tracks or would add. Without git, return all but hidden folders and build output."""
    if shutil.which("git") and (ROOT / ".git").exists():
        return run_command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    hidden = re.compile(r"(^|/)(\.|__pycache__/|[^/]*\.egg-info/)|^(build|dist|out|state|demo-out)/")
    paths = (str(p.relative_to(ROOT)) for folder in ROOT.iterdir() for p in [folder, *folder.rglob("*")] if p.is_file())
    return [name for name in paths if not hidden.search(name)]


@pytest.fixture(scope="module")
def distribution_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist, built from a clean copy of the files in git."""
    home = tmp_path_factory.mktemp("built")
    for name in filter(None, list_source_files()):
        if (ROOT / name).is_file():
            (home / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (home / "source" / name).write_bytes((ROOT / name).read_bytes())
    run_command(sys.executable, "-m", "build", "--outdir", home / "dist", cwd=home / "source")
    return home / "dist"


def test_wheel_contains_every_source_file_and_the_license(distribution_directory: Path) -> None:
    (wheel,) = distribution_directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (archive.read(n).decode() for n in names if n.endswith(".dist-info/METADATA"))
    source = ROOT / "src"
    files = [
        p.relative_to(source)
        for p in (source / "slackwater").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    ]
    expected = {str(p) for p in files}  # including templates, pictures and the schema
    assert expected == {n for n in names if not n.split("/")[0].endswith(".dist-info")}
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert "License-Expression: Apache-2.0" in about
    assert "# Slackwater" in about


def test_wheel_and_sdist_pass_the_strict_twine_check(distribution_directory: Path) -> None:
    """The metadata is complete, and PyPI can render the README."""
    said = run_command(
        sys.executable,
        "-m",
        "twine",
        "check",
        "--strict",
        *distribution_directory.iterdir(),
        cwd=distribution_directory,
    )
    assert said.count("PASSED") == 2, said


def test_sdist_contains_the_files_to_build_a_wheel(distribution_directory: Path) -> None:
    (sdist,) = distribution_directory.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/slackwater/__init__.py", "src/slackwater/py.typed"} <= names


@exhaustive(beside="test_package.py::test_wheel_contains_every_source_file_and_the_license")
def test_wheel_works_in_an_empty_directory(distribution_directory: Path, tmp_path: Path) -> None:
    """Slackwater comes from the wheel alone. Its declared dependencies come from the environment of this run."""
    (wheel,) = distribution_directory.glob("*.whl")
    run_command(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    # new environments of Python 3.11 contain a setuptools that is older than the tools require
    if sys.version_info < (3, 12):
        run_command(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", cwd=tmp_path)
    run_command(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    packages = Path(
        run_command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    # Python ignores .pth files in folders added by a .pth file, so the editable install of this run has no effect
    ours = [p for p in sys.path if Path(p).name == "site-packages"]
    (packages / "dependencies.pth").write_text("\n".join(ours) + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    command = tmp_path / "venv/bin/slackwater"
    where = run_command(python, "-c", "import slackwater; print(slackwater.__file__)", cwd=empty).strip()
    assert Path(where).is_relative_to(packages)
    assert run_command(command, "--version", cwd=empty) == f"slackwater {metadata.version('slackwater')}\n"
    for name in ("sessions.toml", "sessions.py"):
        (empty / name).write_text((ROOT / "examples" / "sessions" / name).read_text())
    assert "sessions.toml: ok" in run_command(command, "check", "sessions.toml", cwd=empty)
    assert "session" in run_command(command, "explain", "sessions.toml", cwd=empty)
    run_command(python, "-m", "pip", "check", cwd=empty)
