"""Relative paths are resolved from the config folder, and a start never creates a second state silently."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import slackwater as sw
from slackwater.cli.main import main
from slackwater.config.relative_paths import restore_written_path
from slackwater.errors import StartError
from slackwater.runner import local_paths

CONFIG = """name = "clicks"
[connections.lake]
kind = "files"
[[sources]]
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[transform.lookups.users]
connection = "lake"
query = "users/*.json"
[transform.window]
kind = "session"
gap_ms = "30s"
max_session_duration_ms = "1h"
event_time_column = "ts"
late_data = "dlq"
group_by = ["user"]
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "out"
[dead_letter]
connection = "lake"
path = "letters"
[state_store]
kind = "files"
path = "${STATE}"
"""


@pytest.fixture
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with a config, and change to another directory."""
    monkeypatch.setenv("STATE", "state")
    for name in ("conf", "conf/in", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "conf" / "p.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def load_config(home: Path) -> sw.Pipeline:
    return sw.load(home / "conf" / "p.toml")


def test_relative_paths_are_resolved_from_the_config_folder(config_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def paths(pipeline: sw.Pipeline) -> list[str]:
        assert pipeline.dead_letter is not None and pipeline.state_store is not None
        (source,), lookup = pipeline.sources, pipeline.transform.lookups["users"]
        resolved = (
            source.query,
            lookup.query,
            pipeline.target.path,
            pipeline.dead_letter.path,
            pipeline.state_store.path,
        )
        return [str(path) for path in resolved]

    conf = config_home / "conf"
    expected = [str(conf / name) for name in ("in/*.jsonl", "users/*.json", "out", "letters", "state")]
    assert paths(load_config(config_home)) == expected
    assert paths(sw.load("../conf/p.toml")) == expected
    monkeypatch.chdir(conf)
    assert paths(sw.load("p.toml")) == expected


def test_source_name_and_written_config_keep_relative_paths(config_home: Path) -> None:
    pipeline = load_config(config_home)
    assert pipeline.sources[0].name == "in/*.jsonl"  # states store this name
    written = sw.to_toml(pipeline)
    assert 'path = "out"' in written and 'path = "${STATE}"' in written and str(config_home) not in written
    (config_home / "conf" / "copy.toml").write_text(written)
    assert sw.load(config_home / "conf" / "copy.toml") == pipeline
    assert restore_written_path(str(pipeline.target.path)) == str(config_home / "conf" / "out")
    assert restore_written_path(pipeline.target.path or "") == "out"


@pytest.mark.parametrize("path", ["/data/in", "s3://bucket/in", "file:/data/in"])
def test_absolute_paths_and_urls_are_not_changed(config_home: Path, path: str) -> None:
    (config_home / "conf" / "p.toml").write_text(
        CONFIG.replace("in/*.jsonl", path).replace('path = "out"', f'path = "{path}"')
    )
    pipeline = load_config(config_home)
    assert (pipeline.sources[0].query, pipeline.target.path) == (path, path)


def run_cli_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["slackwater", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.mark.parametrize("name", ["run", "plan", "check"])
def test_a_state_in_the_working_directory_is_reported(
    config_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A state exists in the working directory, from which paths used to be resolved, but not in the config folder."""
    (config_home / "elsewhere" / "state" / "clicks" / "manifests").mkdir(parents=True)
    (config_home / "elsewhere" / "state" / "clicks" / "manifests" / "000000000.json").write_text("{}")
    (config_home / "elsewhere" / "out" / "_slackwater").mkdir(parents=True)
    (config_home / "elsewhere" / "out" / "_slackwater" / "clicks.json").write_text("{}")
    code, out, err = run_cli_command(monkeypatch, capsys, name, str(config_home / "conf" / "p.toml"))
    assert (code, out) == (1, "")
    for place in (
        config_home / "elsewhere" / "state",
        config_home / "conf" / "state",
        config_home / "elsewhere" / "out",
        config_home / "conf" / "out",
    ):
        assert f'"{place}"' in err
    assert (
        f"mv '{config_home / 'elsewhere' / 'state'}' '{config_home / 'conf' / 'state'}'" in err and err.count("\n") == 1
    )


def test_state_in_the_old_directory_is_refused_unless_a_new_one_exists(config_home: Path) -> None:
    for place in ("elsewhere", "conf"):
        (config_home / place / "state" / "clicks" / "manifests").mkdir(parents=True)
        (config_home / place / "state" / "clicks" / "manifests" / "000000000.json").write_text("{}")
    local_paths.check_moved_directories(load_config(config_home))  # not refused, because the config folder has a state
    for file in (config_home / "conf" / "state").rglob("*.json"):
        file.unlink()
    with pytest.raises(StartError, match="relative paths are now resolved from the folder of the config"):
        local_paths.check_moved_directories(load_config(config_home))


def test_unrelated_files_in_the_old_directory_are_ignored(config_home: Path) -> None:
    (config_home / "elsewhere" / "out").mkdir()
    (config_home / "elsewhere" / "out" / "report.pdf").write_text("x")
    (config_home / "elsewhere" / "state" / "other" / "manifests").mkdir(parents=True)
    (config_home / "elsewhere" / "state" / "other" / "manifests" / "000000000.json").write_text("{}")
    local_paths.check_moved_directories(load_config(config_home))


def test_check_shows_absolute_paths_and_missing_files(
    config_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (config_home / "conf" / "in").rmdir()
    monkeypatch.setenv("STATE", "s")
    code, out, err = run_cli_command(monkeypatch, capsys, "check", str(config_home / "conf" / "p.toml"))
    assert (code, err) == (0, "")
    assert f'note: sources[0].query: "{config_home / "conf" / "in"}" does not exist' in out


def test_an_unwritable_path_is_refused(
    config_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (config_home / "conf" / "out").write_text("a file")
    (config_home / "conf" / "p.toml").write_text(CONFIG.replace('path = "letters"', 'path = "out/letters"'))
    code, out, err = run_cli_command(monkeypatch, capsys, "check", str(config_home / "conf" / "p.toml"))
    assert (code, out) == (2, "")
    file = config_home / "conf" / "p.toml"
    assert err.splitlines() == [
        f'{file}: target.path: "{config_home / "conf" / "out"}" is a file; expected a directory, or one that can be created',
        f'{file}: dead_letter.path: "{config_home / "conf" / "out" / "letters"}" is below a file; expected a directory, or one that can be created',
        "the keys are documented in docs/configuration.md#target-and-dead-letters",
        "2 problems",
    ]


def test_directory_without_write_permission_is_reported(config_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate `os.access`, because the user who runs this test may have write permission everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != config_home / "conf")
    lines = list(local_paths.unwritable_directories(load_config(config_home)))
    assert len(lines) == 3
    assert f'target.path: "{config_home / "conf" / "out"}" cannot be created (Permission denied)' in lines[1]
    assert "${STATE}" in lines[0] and str(config_home / "conf" / "state") not in lines[0]
