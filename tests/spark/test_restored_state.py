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
def make(tmp_path: Path, spark: Any, request: pytest.FixtureRequest) -> Make:
    def new_pipeline(target: str, state: str = "files", mode: str = "merge") -> RestartablePipeline:
        needed = {s for s in (target, state) if s in ("postgres", "kafka")}
        services = {name: request.getfixturevalue(name) for name in needed}
        return RestartablePipeline(tmp_path, spark, target, state, mode, services)

    return new_pipeline


def refused(one: RestartablePipeline, *words: str, **more: Any) -> str:
    before = one.rows()
    with pytest.raises((StateError, StartError)) as error:
        one.start(**more)
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    assert one.rows() == before
    return text


def restored(one: RestartablePipeline) -> RestartablePipeline:
    """Run epochs 0 and 1, copy the state, run three more epochs, restore the copy, and add two files."""
    one.add(1, 2)
    one.start()
    one.copy_state("copy")
    one.add(3, 4, 5)
    one.start()
    one.copy_state("newer")
    one.restore_state("copy")
    one.add(6, 7)
    return one


KINDS = [(t, "files") for t in TARGETS] + [("files", "postgres"), ("postgres", "postgres")]


@pytest.mark.parametrize(("target", "state"), select_cases(KINDS, 2))
def test_restored_copy_is_refused_and_newer_state_continues(make: Make, target: str, state: str) -> None:
    one = restored(make(target, state))
    refused(one, "older copy", "restore the newer state", "--rebuild")
    one.restore_state("newer")
    one.start(flush=True)
    assert one.rows() == one.expected


@pytest.mark.parametrize(
    ("target", "state"),
    select_cases([(t, "files") for t in TARGETS if t not in ("files", "kafka")] + [("postgres", "postgres")]),
)
def test_restored_copy_with_keep_output_replaces_rows(make: Make, target: str, state: str) -> None:
    one = restored(make(target, state))
    refused(one, "--keep-output")
    one.start(former_output="keep")
    one.add(8)
    one.start(flush=True)
    assert one.rows() == one.expected


def test_output_files_newer_than_restored_copy_are_moved_away(make: Make) -> None:
    one = restored(make("files"))
    refused(one, "--put-aside-output")
    one.start(former_output="aside")
    one.add(8)
    one.start(flush=True)
    assert one.rows() == one.expected


@pytest.mark.parametrize("target", select_cases(TARGETS, 2))
def test_original_state_is_refused_after_restored_copy_continued(make: Make, target: str) -> None:
    """Both states have the same epochs with different rows."""
    one = restored(make(target))
    one.start(former_output="aside" if target == "files" else "keep")
    one.add(8)
    one.start()
    one.restore_state("newer")
    refused(one, "another history" if target != "files" else "epoch")


@pytest.mark.parametrize("target", select_cases(["files", "postgres"], 1))
def test_restored_copy_can_be_rebuilt(make: Make, target: str) -> None:
    one = restored(make(target))
    refused(one, "--rebuild")
    one.start(flush=True, rebuild={}, former_output="aside" if target == "files" else None)
    assert one.rows() == one.expected


@pytest.mark.parametrize("target", select_cases(TARGETS, 2))
def test_start_is_refused_if_target_lost_rows(make: Make, target: str) -> None:
    one = make(target)
    one.add(1, 2, 3)
    one.start()
    one.empty_target()
    one.add(4, 5)
    text = refused(one, "contains no epoch of this state", "restore the target", "--keep-output")
    assert "--put-aside-output" not in text
    if target == "kafka":
        one.start(former_output="keep", flush=True)
        assert one.rows() == {m: n for m, n in one.expected.items() if m >= 3}
        return
    one.start(rebuild={}, flush=True)
    assert one.rows() == one.expected


def test_start_is_refused_if_target_table_was_recreated(make: Make) -> None:
    one = make("postgres")
    one.add(1, 2, 3)
    one.start()
    one.recreate_target()
    one.add(4, 5)
    refused(
        one, "contains no epoch of this state (the target was emptied, or deleted and created again)", "--keep-output"
    )
    one.start(former_output="keep", flush=True)
    assert one.rows() == one.expected


def test_state_of_earlier_version_is_compared_by_epoch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits and markers of an earlier version have neither ids nor marks."""
    one = make("files")
    with monkeypatch.context() as patch:
        patch.setattr("slackwater.state.commit.new_commit_id", lambda: "")
        patch.setattr("slackwater.engine.publishing.target_changes.with_targets", unmarked)
        one.add(1, 2)
        one.start()
        one.copy_state("copy")
        one.add(3, 4, 5)
        one.start()
        one.copy_state("newer")
        one.restore_state("copy")
    one.add(6)
    refused(one, "older copy")
    one.restore_state("newer")
    one.start(flush=True)
    assert one.rows() == one.expected


def unmarked(commit: Any, targets: Any, letters_to: Any, held_markers: Any = None) -> Any:
    return commit.model_copy(update={"targets": targets, "letters_to": letters_to})


# -- renamed pipelines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "state"),
    select_cases(
        [("files", "files"), ("postgres", "postgres"), ("delta", "files"), ("kafka", "files"), ("iceberg", "files")], 2
    ),
)
def test_renamed_pipeline_requires_formerly_and_continues(make: Make, target: str, state: str) -> None:
    one = make(target, state)
    one.add(1, 2, 3)
    one.start()
    one.name = "minutes"
    one.add(4)
    refused(one, 'pipeline "counts" has one in the same state store', 'formerly = "counts"', "--keep-output")
    one.formerly = "counts"
    one.start()
    one.add(5)
    one.start(flush=True)
    assert one.rows() == one.expected


def test_results_of_pipeline_with_moved_state_are_detected(make: Make) -> None:
    one = make("delta")
    one.add(1, 2)
    one.start()
    one.name = "minutes"
    shutil.move(one.home / "state", one.home / "elsewhere")
    refused(one, 'contains results of pipeline "counts", whose state was not found')
    one.start(former_output="keep")  # starts as another pipeline
    one.start()


def test_a_renamed_copy_of_an_older_state_is_refused(make: Make) -> None:
    one = restored(make("files"))
    one.name, one.formerly = "minutes", "counts"
    refused(one, "older copy")
