"""Output of an earlier state under a new state: the output is reported, refused, moved away or extended."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest
from tests.support.iceberg_tables import sql_catalog_connection, sql_catalog_table

from slackwater.cli.main import main
from slackwater.config import toml
from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import ConfigError, StartError
from slackwater.runner import existing_output
from slackwater.runner.run import run

FIELDS = (Field("k", "string"),)
ROWS = pl.DataFrame({"k": ["a"]})


def write_files_pipeline_config(home: Path, target: str = "", state: bool = True, letters: bool = False) -> Path:
    (home / "in").mkdir(exist_ok=True)
    file = home / "p.toml"
    file.write_text(
        f"""
name = "p"
[connections.lake]
kind = "files"
[connections.table]
kind = "delta"
[[sources]]
name = "a"
connection = "lake"
query = "{home}/in"
format = "json"
schema = "ts TIMESTAMP, k STRING"
{"[transform]" + chr(10) + 'on_error = "dlq"' if letters else ""}
[transform.window]
kind = "tumbling"
duration_ms = 1000
event_time_column = "ts"
group_by = ["k"]
max_groups_per_window = 100
aggregations = [{{agg = "count", as = "n"}}]
[target]
{target or f'connection = "lake"{chr(10)}path = "{home}/out"'}
"""
        + (f'[state_store]\nkind = "files"\npath = "{home}/state"\n' if state else "")
        + (f'[dead_letter]\nconnection = "lake"\npath = "{home}/letters"\n' if letters else "")
    )
    return file


def publish_output_epochs(
    home: Path,
    *epochs: int,
    writer: str = "p",
    state: str = "00ff00ff00ff00ff",
    form: str = "parquet",
    folder: str = "out",
) -> None:
    target = FilesTarget(home / folder, form, TargetTable(writer, FIELDS, None, state))
    for epoch in epochs:
        target.publish(epoch, ROWS)


@pytest.mark.semantics("starting-over")
@pytest.mark.parametrize("rebuild", [None, {}])
def test_a_refused_start_changes_nothing(tmp_path: Path, rebuild: dict[str, str] | None) -> None:
    """A start without a state refuses an append-only target that has output of another state, and changes nothing."""
    publish_output_epochs(tmp_path, 3, 4, 7)
    pipeline = toml.load(write_files_pipeline_config(tmp_path))
    before = sorted(p for p in tmp_path.rglob("*") if "state" not in p.parts)
    with pytest.raises(
        StartError,
        match=r'^p: target already contains 3 files of another state of "p" in ".*out", up to epoch 7; .*; move these files away with '
        r"--put-aside-output, or add new rows to the existing output with --keep-output; nothing was changed$",
    ):
        run(pipeline, available_now=True, rebuild=rebuild)
    assert sorted(p for p in tmp_path.rglob("*") if "state" not in p.parts) == before
    assert not list((tmp_path).glob("state/p*before*"))


def test_output_files_without_marker_are_reported(tmp_path: Path) -> None:
    publish_output_epochs(tmp_path, 3)
    (tmp_path / "out" / "_slackwater" / "p.json").unlink()
    with pytest.raises(StartError, match=r'1 file of another state of "p" in "[^,]*"; this start has no state'):
        existing_output.check_previous_output(toml.load(write_files_pipeline_config(tmp_path)), None)


def test_output_of_other_pipelines_is_left_alone(tmp_path: Path) -> None:
    publish_output_epochs(tmp_path, 1, writer="q")
    publish_output_epochs(tmp_path, 1, writer="p-q")
    publish_output_epochs(tmp_path, 1, writer="p-letters")
    (tmp_path / "out" / "p-notes.parquet").write_bytes(b"")
    pipeline = toml.load(write_files_pipeline_config(tmp_path))
    assert existing_output.check_previous_output(pipeline, None) == []
    assert existing_output.move_previous_output(pipeline) == []
    publish_output_epochs(tmp_path, 5)
    assert len(existing_output.move_previous_output(pipeline)) == 1
    assert sorted(p.name for p in (tmp_path / "out").glob("*.parquet")) == [
        "p-letters-000000001.parquet", "p-notes.parquet", "p-q-000000001.parquet", "q-000000001.parquet",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_moved_output_is_complete_and_next_state_starts_clean(tmp_path: Path, form: str) -> None:
    publish_output_epochs(tmp_path, 3, 4, form=form)
    publish_output_epochs(
        tmp_path, 0, state="abcdef0123456789", form=form
    )  # next to the earlier files, as with --keep-output
    pipeline = toml.load(
        write_files_pipeline_config(tmp_path, f'connection = "lake"\npath = "{tmp_path}/out"\nformat = "{form}"')
    )
    (line,) = existing_output.move_previous_output(pipeline)
    aside = Path(line.split('"')[1])
    assert len([p for p in aside.iterdir() if p.suffix != ".json"]) == 3
    assert (aside / "p.json").exists()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["_slackwater"]
    assert existing_output.check_previous_output(pipeline, None) == []


def test_keep_output_option_reports_existing_files(tmp_path: Path) -> None:
    publish_output_epochs(tmp_path, 3)
    pipeline = toml.load(write_files_pipeline_config(tmp_path))
    (line,) = existing_output.check_previous_output(pipeline, "keep")
    assert "1 file of another state" in line
    assert "new rows are added to them" in line
    publish_output_epochs(tmp_path, 0, state="0123456789abcdef")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2


def test_output_without_state_store_and_old_dead_letters_are_not_refused(tmp_path: Path) -> None:
    publish_output_epochs(tmp_path, 3)
    assert (
        len(existing_output.check_previous_output(toml.load(write_files_pipeline_config(tmp_path, state=False)), None))
        == 1
    )
    (tmp_path / "b").mkdir()
    publish_output_epochs(tmp_path / "b", 3, writer="p-letters", folder="letters")
    (line,) = existing_output.check_previous_output(
        toml.load(write_files_pipeline_config(tmp_path / "b", letters=True)), None
    )
    assert line.startswith("dead_letter: 1 file of another state")
    assert len(existing_output.move_previous_output(toml.load(tmp_path / "b" / "p.toml"))) == 1


def test_append_only_delta_table_with_previous_rows_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "lake")
    old = DeltaTarget(path, "append", TargetTable("p", FIELDS, None, "old"))
    old.open()
    old.publish(6, ROWS)
    pipeline = toml.load(
        write_files_pipeline_config(tmp_path, f'connection = "table"\npath = "{path}"\nmode = "append"')
    )
    for choice in (None, "aside"):
        with pytest.raises(
            StartError,
            match=r'rows of another state of "p" in Delta table .*, up to epoch 6; .*; empty the target, name another one, or',
        ):
            existing_output.check_previous_output(pipeline, choice)
    assert len(existing_output.check_previous_output(pipeline, "keep")) == 1
    merging = toml.load(write_files_pipeline_config(tmp_path, f'connection = "table"\npath = "{path}"\nmode = "merge"'))
    assert existing_output.check_previous_output(merging, None) == []  # rows are replaced


def test_append_only_iceberg_table_with_previous_rows_is_refused(tmp_path: Path) -> None:
    lake = sql_catalog_table(tmp_path, "shop.t")
    lake.open_target(TargetTable("p", FIELDS, None, "old"), "append").publish(6, ROWS)
    text = write_files_pipeline_config(tmp_path, 'connection = "table"\ntable = "shop.t"\nmode = "append"').read_text()
    pipeline = toml.loads(text.replace('kind = "delta"', sql_catalog_connection(tmp_path)))
    message = r'rows of another state of "p" in Iceberg table shop.t, up to epoch 6; .*; empty the target, name another one, or'
    with pytest.raises(StartError, match=message):
        existing_output.check_previous_output(pipeline, None)
    assert len(existing_output.check_previous_output(pipeline, "keep")) == 1


def test_previous_output_accepts_exactly_one_valid_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_files_pipeline_config(tmp_path)
    with pytest.raises(ConfigError, match='former_output: found "x", expected "aside" or "keep"'):
        run(toml.load(file), available_now=True, former_output="x")
    monkeypatch.setattr(sys, "argv", ["slackwater", "run", str(file), "--put-aside-output", "--keep-output"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "found both, expected one" in capsys.readouterr().err
