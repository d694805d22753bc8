"""States restored from an old copy: the start is refused, and each way out gives every row once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import select_cases
from tests.support.restartable_pipeline import TARGETS, RestartablePipeline

from slackwater.errors import StartError, StateError

Make = Callable[..., RestartablePipeline]


@pytest.fixture
def create_restartable_pipeline(tmp_path: Path, spark: Any, request: pytest.FixtureRequest) -> Make:
    def new_pipeline(target: str, state: str = "files", mode: str = "merge") -> RestartablePipeline:
        needed = {s for s in (target, state) if s in ("postgres", "kafka")}
        services = {name: request.getfixturevalue(name) for name in needed}
        return RestartablePipeline(tmp_path, spark, target, state, mode, services)

    return new_pipeline


def expect_refused_start(one: RestartablePipeline, *words: str, **more: Any) -> str:
    before = one.read_counts_per_minute()
    with pytest.raises((StateError, StartError)) as error:
        one.run_available_input(**more)
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    assert one.read_counts_per_minute() == before
    return text


def restore_older_state(one: RestartablePipeline) -> RestartablePipeline:
    """Run epochs 0 and 1, copy the state, run three more epochs, restore the copy, and add two files."""
    one.write_input_files(1, 2)
    one.run_available_input()
    one.copy_state("copy")
    one.write_input_files(3, 4, 5)
    one.run_available_input()
    one.copy_state("newer")
    one.restore_state("copy")
    one.write_input_files(6, 7)
    return one


KINDS = [(t, "files") for t in TARGETS] + [("files", "postgres"), ("postgres", "postgres")]


@pytest.mark.parametrize(("target", "state"), select_cases(KINDS, 2))
def test_restored_copy_is_refused_and_newer_state_continues(
    create_restartable_pipeline: Make, target: str, state: str
) -> None:
    one = restore_older_state(create_restartable_pipeline(target, state))
    expect_refused_start(one, "older copy", "restore the newer state", "--rebuild")
    one.restore_state("newer")
    one.run_available_input(flush=True)
    assert one.read_counts_per_minute() == one.expected


@pytest.mark.parametrize(
    ("target", "state"),
    select_cases([(t, "files") for t in TARGETS if t not in ("files", "kafka")] + [("postgres", "postgres")]),
)
def test_restored_copy_with_keep_output_replaces_rows(
    create_restartable_pipeline: Make, target: str, state: str
) -> None:
    one = restore_older_state(create_restartable_pipeline(target, state))
    expect_refused_start(one, "--keep-output")
    one.run_available_input(former_output="keep")
    one.write_input_files(8)
    one.run_available_input(flush=True)
    assert one.read_counts_per_minute() == one.expected


def test_output_files_newer_than_restored_copy_are_moved_away(create_restartable_pipeline: Make) -> None:
    one = restore_older_state(create_restartable_pipeline("files"))
    expect_refused_start(one, "--put-aside-output")
    one.run_available_input(former_output="aside")
    one.write_input_files(8)
    one.run_available_input(flush=True)
    assert one.read_counts_per_minute() == one.expected


@pytest.mark.parametrize("target", select_cases(TARGETS, 2))
def test_original_state_is_refused_after_restored_copy_continued(
    create_restartable_pipeline: Make, target: str
) -> None:
    """Both states have the same epochs with different rows."""
    one = restore_older_state(create_restartable_pipeline(target))
    one.run_available_input(former_output="aside" if target == "files" else "keep")
    one.write_input_files(8)
    one.run_available_input()
    one.restore_state("newer")
    expect_refused_start(one, "another history" if target != "files" else "epoch")


@pytest.mark.parametrize("target", select_cases(["files", "postgres"], 1))
def test_restored_copy_can_be_rebuilt(create_restartable_pipeline: Make, target: str) -> None:
    one = restore_older_state(create_restartable_pipeline(target))
    expect_refused_start(one, "--rebuild")
    one.run_available_input(flush=True, rebuild={}, former_output="aside" if target == "files" else None)
    assert one.read_counts_per_minute() == one.expected


@pytest.mark.parametrize("target", select_cases(TARGETS, 2))
def test_start_is_refused_if_target_lost_rows(create_restartable_pipeline: Make, target: str) -> None:
    one = create_restartable_pipeline(target)
    one.write_input_files(1, 2, 3)
    one.run_available_input()
    one.empty_target()
    one.write_input_files(4, 5)
    text = expect_refused_start(one, "contains no epoch of this state", "restore the target", "--keep-output")
    assert "--put-aside-output" not in text
    if target == "kafka":
        one.run_available_input(former_output="keep", flush=True)
        assert one.read_counts_per_minute() == {m: n for m, n in one.expected.items() if m >= 3}
        return
    one.run_available_input(rebuild={}, flush=True)
    assert one.read_counts_per_minute() == one.expected


def test_start_is_refused_if_target_table_was_recreated(create_restartable_pipeline: Make) -> None:
    one = create_restartable_pipeline("postgres")
    one.write_input_files(1, 2, 3)
    one.run_available_input()
    one.recreate_target()
    one.write_input_files(4, 5)
    expect_refused_start(
        one, "contains no epoch of this state (the target was emptied, or deleted and created again)", "--keep-output"
    )
    one.run_available_input(former_output="keep", flush=True)
    assert one.read_counts_per_minute() == one.expected


def test_state_of_earlier_version_is_compared_by_epoch(
    create_restartable_pipeline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits and markers of an earlier version have neither ids nor marks."""
    one = create_restartable_pipeline("files")
    with monkeypatch.context() as patch:
        patch.setattr("slackwater.state.commit.new_commit_id", lambda: "")
        patch.setattr("slackwater.engine.publishing.target_changes.with_targets", replace_targets_without_markers)
        one.write_input_files(1, 2)
        one.run_available_input()
        one.copy_state("copy")
        one.write_input_files(3, 4, 5)
        one.run_available_input()
        one.copy_state("newer")
        one.restore_state("copy")
    one.write_input_files(6)
    expect_refused_start(one, "older copy")
    one.restore_state("newer")
    one.run_available_input(flush=True)
    assert one.read_counts_per_minute() == one.expected


def replace_targets_without_markers(commit: Any, targets: Any, letters_to: Any, held_markers: Any = None) -> Any:
    return commit.model_copy(update={"targets": targets, "letters_to": letters_to})


# -- renamed pipelines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "state"),
    select_cases(
        [("files", "files"), ("postgres", "postgres"), ("delta", "files"), ("kafka", "files"), ("iceberg", "files")], 2
    ),
)
def test_renamed_pipeline_requires_formerly_and_continues(
    create_restartable_pipeline: Make, target: str, state: str
) -> None:
    one = create_restartable_pipeline(target, state)
    one.write_input_files(1, 2, 3)
    one.run_available_input()
    one.name = "minutes"
    one.write_input_files(4)
    expect_refused_start(
        one, 'pipeline "counts" has one in the same state store', 'formerly = "counts"', "--keep-output"
    )
    one.formerly = "counts"
    one.run_available_input()
    one.write_input_files(5)
    one.run_available_input(flush=True)
    assert one.read_counts_per_minute() == one.expected


def test_results_of_pipeline_with_moved_state_are_detected(create_restartable_pipeline: Make) -> None:
    one = create_restartable_pipeline("delta")
    one.write_input_files(1, 2)
    one.run_available_input()
    one.name = "minutes"
    shutil.move(one.home / "state", one.home / "elsewhere")
    expect_refused_start(one, 'contains results of pipeline "counts", whose state was not found')
    one.run_available_input(former_output="keep")  # starts as another pipeline
    one.run_available_input()


def test_a_renamed_copy_of_an_older_state_is_refused(create_restartable_pipeline: Make) -> None:
    one = restore_older_state(create_restartable_pipeline("files"))
    one.name, one.formerly = "minutes", "counts"
    expect_refused_start(one, "older copy")
