"""First pages of the docs: their commands and events print their tables, and a background run behaves as documented."""

from __future__ import annotations

import os
import queue
import shutil
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.command import run_command_for_exit_code
from tests.support.markdown_pages import ROOT, read_fenced_block

import slackwater as sw
from slackwater.errors import LockHeldError

pytestmark = pytest.mark.spark


def read_output_rows(folder: Path) -> list[dict[str, Any]]:
    return pl.concat([pl.read_parquet(p) for p in sorted(folder.glob("*.parquet"))]).to_dicts()


@pytest.mark.usefixtures("spark")
def test_commands_of_the_start_page_print_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the commands of docs/start-files.md over its events, and compare the output with its table."""
    page = "docs/start-files.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "clicks").mkdir(parents=True)
    (tmp_path / "data" / "clicks" / "morning.jsonl").write_text(read_fenced_block("json", 0, page))
    commands = [line.split()[1:] for n in (0, 1) for line in read_fenced_block("", n, page).splitlines()]
    assert [c[0] for c in commands] == ["init", "check", "run", "show"]
    for arguments in commands:
        capsys.readouterr()
        assert run_command_for_exit_code(monkeypatch, *arguments) == 0
    assert capsys.readouterr().out == read_fenced_block("text", 0, page)


@pytest.mark.usefixtures("spark")
def test_config_of_the_learn_page_writes_its_first_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the config of docs/learn.md over its events, one per file, and compare the output with its first table."""
    page = "docs/learn.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.toml").write_text(read_fenced_block("toml", 0, page))
    (tmp_path / "clicks").mkdir()
    for n, line in enumerate(read_fenced_block("json", 0, page).splitlines()):
        path = tmp_path / "clicks" / f"{n}.jsonl"
        path.write_text(line + "\n")
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))
    assert run_command_for_exit_code(monkeypatch, "run", "visits.toml", "--available-now", "--flush") == 0
    names, *lines = [line.split() for line in read_fenced_block("text", 0, page).splitlines()]
    rows = [
        [f"{r[n]:%Y-%m-%dT%H:%M:%SZ}" if hasattr(r[n], "hour") else str(r[n]) for n in names]
        for r in read_output_rows(tmp_path / "out")
    ]
    assert sorted(rows) == sorted(lines)


def test_background_run_behaves_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    """A background run reports commits and open keys, refuses a second run, and stops. The next run continues."""
    shutil.copytree(ROOT / "examples" / "sessions", tmp_path / "s", ignore=shutil.ignore_patterns("out", "state"))
    pipeline = sw.load(tmp_path / "s" / "sessions.toml")
    events = tmp_path / "s" / "data" / "events"
    seen: queue.Queue[int] = queue.Queue()

    def until(epoch: int) -> None:
        while seen.get(timeout=300) < epoch:
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = sw.run(pipeline, background=True, spark=spark, on_status=lambda s: seen.put(s.epoch))
        until(0)
        assert run.is_running
        second = sw.run(pipeline, background=True, spark=spark)
        with pytest.raises(LockHeldError, match="already running"):
            second.wait(300)
        with pytest.raises(LockHeldError):
            second.status  # noqa: B018
        (events / "later.jsonl").write_text('{"user_id": "u9", "event_type": "click", "ts": "2024-03-01T15:00:00Z"}\n')
        until(1)
        assert [o.key for o in run.why("user_id=u9").next] == [{"user_id": "u9"}]
        last = run.stop(300)
        assert last is not None
        assert last == run.status
        assert last.counters.rows_in == 11
        assert not run.is_running
        with sw.open_state(pipeline) as state:
            assert "user_id=u9" in state._repr_html_()
        with pytest.raises(sw.SlackwaterError) as bad:  # the exception leaves the block
            (events / "broken.jsonl").write_text('{"user_id": "u9", "event_type": "click"}\n')
            with sw.run(pipeline, background=True, spark=spark, available_now=True) as third:
                third.wait(300)
        assert bad.value.documented == "docs/messages/run.md#bad-rows-stop-the-pipeline"
