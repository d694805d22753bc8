"""`slackwater schema`, links from `check` to the docs, and shell completion."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.config_mistakes import BASE, CASES
from tests.support.markdown_pages import find_heading_anchors

from slackwater.config import json_schema
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import find_doc_link, iterate_specs

ROOT = Path(__file__).resolve().parents[2]


def test_schema_command_prints_the_json_schema(run_slackwater: Command) -> None:
    outcome = run_slackwater("schema")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == json_schema.build_schema()


def test_check_links_to_the_docs_of_wrong_keys(run_slackwater: Command, tmp_path: Path) -> None:
    wrong = BASE.replace("gap_ms", "gapp").replace('path = "out"', 'pth = "out"').replace('as = "events"', 'as = ""')
    (tmp_path / "p.toml").write_text(wrong)
    *lines, places, count = run_slackwater("check", "p.toml").err.splitlines()
    assert len(lines) == 5 and count == "5 problems"
    page = "docs/configuration.md#"
    assert places == f"the keys are documented in {page}windows, {page}aggregations, {page}target-and-dead-letters"


def test_errors_without_a_key_do_not_link_to_the_docs(run_slackwater: Command, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("name = = 5\n")
    assert "documented" not in run_slackwater("check", "p.toml").err
    assert "documented" not in run_slackwater("check", "absent.toml").err


@pytest.mark.parametrize("command", ["explain", "run", "plan", "why"])
def test_only_check_links_to_the_docs(run_slackwater: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "p.toml").write_text(BASE.replace("gap_ms", "gapp"))
    outcome = run_slackwater(command, "p.toml")
    assert outcome.code == 2 and "documented" not in outcome.err


def test_every_section_that_an_error_links_to_exists() -> None:
    """Check the page and the heading of the link for each line in the table of errors."""
    places = {find_doc_link(Pipeline, line.partition(": ")[0]) for case in CASES for line in case[3:]}
    places |= {spec.DOC_LINK for spec in iterate_specs(Pipeline)}
    assert len(places) == 12
    for page, _, anchor in (place.partition("#") for place in places):
        assert anchor in find_heading_anchors((ROOT / page).read_text()), f"{page} has no heading {anchor}"


# -- completion


def complete_line(shell: str, line: str) -> str:
    """Return the completions of a line, requested like the completion script of the shell does."""
    environment = {
        **os.environ,
        "_SLACKWATER_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    process = subprocess.run(
        [str(Path(sys.executable).parent / "slackwater")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert process.stderr == ""
    return process.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_options_are_completed(shell: str) -> None:
    assert re.search(r"\bexplain\b", complete_line(shell, "slackwater exp"))
    assert "--available-now" in complete_line(shell, "slackwater run --av")


def test_completion_script_works_in_bash(tmp_path: Path) -> None:
    """Source the completion script in bash, which fills COMPREPLY."""
    bin_dir = Path(sys.executable).parent
    shown = subprocess.run(
        [bin_dir / "slackwater", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert shown.returncode == 0 and "complete" in shown.stdout
    (tmp_path / "completion.sh").write_text(shown.stdout)
    script = (
        f"source {tmp_path}/completion.sh; COMP_WORDS=(slackwater sta); COMP_CWORD=1; _slackwater_completion slackwater sta slackwater; "
        'echo "${COMPREPLY[@]}"'
    )
    completed_line = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"},
    )
    assert completed_line.stdout.split() == ["state"]


def test_install_completion_writes_the_script_and_sources_it_in_bashrc(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "slackwater"), "--install-completion", "bash"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert done.returncode == 0, done.stderr
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert str(script) in (tmp_path / ".bashrc").read_text() and "slackwater" in script.read_text()
