"""Targets that are added, removed, renamed or moved between runs, also while an epoch is pending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.laws.generators import seed_runner

import slackwater as sw
from slackwater.errors import PublishError, StartError
from slackwater.evolution import config_state_comparison
from slackwater.runner.pending_output import _read_pending
from slackwater.state.commit import Commit
from slackwater.state.files.commit_log import ProgressFiles
from slackwater.storage.local import LocalStorage
from slackwater.testing.local_pipeline import LocalPipeline

SCHEMA = {"k": "string"}
LAKE = {"connection": "lake"}


def build_two_stage_pipeline(*targets: Any, only: Any = None) -> sw.Pipeline:
    count = [sw.Aggregation(agg="count", as_="n")]
    minutes = sw.Window(
        kind="tumbling", duration_ms="1m", max_groups_per_window=9, group_by=["k"], aggregations=count, lateness_ms=0
    )
    hours = sw.Window(kind="tumbling", duration_ms="1h", max_groups_per_window=9, aggregations=count)
    return sw.pipeline(
        name="p",
        sources=[sw.Source(name="rows", dataframe=object())],
        connections={"lake": sw.FilesConnection()},
        stages=[sw.Stage(name="minutes", window=minutes), sw.Stage(name="hours", window=hours)],
        target=only,
        targets=None if only else targets,
        state_store=sw.StateStore(kind="files", path="state"),
    )


def stage_target(path: str, stage: str = "hours", name: str | None = None) -> sw.Target:
    return sw.Target(**LAKE, path=path, from_=stage, name=name)


HOURS, MINUTES = stage_target("hours"), stage_target("minutes", "minutes")


def minute_rows(*minutes: int) -> dict[str, Any]:
    return {"rows": [{"k": "a", "ts": m * 60_000_000} for m in minutes]}


@pytest.fixture
def two_target_pipeline(tmp_path: Path) -> Any:
    seed_runner.hide_warnings()
    with LocalPipeline(
        build_two_stage_pipeline(HOURS, MINUTES), SCHEMA, state_dir=str(tmp_path), capture_losses=False
    ) as local:
        local.pipe(minute_rows(0, 1, 61))
        yield local


def change_lines(pipeline: sw.Pipeline, commit: Commit) -> list[str]:
    comparison = config_state_comparison.compare_config(pipeline, commit)
    assert comparison.startable and not comparison.migrates
    return [c.line for c in comparison.changes]


def test_plan_reports_the_change_of_each_target(two_target_pipeline: Any) -> None:
    commit = two_target_pipeline._driver.state
    assert change_lines(build_two_stage_pipeline(HOURS, MINUTES), commit) == []
    assert change_lines(build_two_stage_pipeline(HOURS), commit) == [
        'target "minutes": state has minutes, config has none: it gets no more output; earlier output stays where it is'
    ]
    more = build_two_stage_pipeline(HOURS, MINUTES, stage_target("more", "minutes", "more"))
    assert change_lines(more, commit) == [
        'target "more": state has none, config has more: it gets the results of stage "minutes" after epoch 0, but no earlier '
        "results"
    ]
    renamed = build_two_stage_pipeline(HOURS, stage_target("minutes", "minutes", "other"))
    assert change_lines(renamed, commit) == ['target "minutes": state has minutes, config has other: it is renamed']
    moved = build_two_stage_pipeline(stage_target("elsewhere"), MINUTES)
    goes = "output after epoch 0 goes there; earlier output stays where it is"
    assert change_lines(moved, commit) == [f'target "hours": state has hours, config has elsewhere: {goes}']
    turned = build_two_stage_pipeline(HOURS, stage_target("minutes", "hours", "minutes"))
    assert change_lines(turned, commit) == [
        'target "minutes" from: state has minutes, config has hours: it gets the results of stage "hours" after epoch 0'
    ]


def test_added_target_gets_only_later_rows_and_removed_one_keeps_its_rows(two_target_pipeline: Any) -> None:
    more = stage_target("more", "minutes", "more")
    assert two_target_pipeline.target("minutes").held.height == 2
    two_target_pipeline.restart(build_two_stage_pipeline(HOURS, more))
    two_target_pipeline.pipe(minute_rows(62))
    two_target_pipeline.restart(build_two_stage_pipeline(HOURS, MINUTES, more))
    two_target_pipeline.pipe(minute_rows(63))
    held = {
        name: [r["window_start"].minute for r in t.rows(named=True)]
        for name, t in two_target_pipeline.result().tables.items()
    }
    assert held["more"] == [1, 2] and held["minutes"] == [0, 1, 2]
    assert set(two_target_pipeline._driver.state.targets) == {"hours", "minutes", "more"}


def test_pipeline_can_change_from_one_target_to_several_and_back(tmp_path: Path) -> None:
    seed_runner.hide_warnings()
    with LocalPipeline(
        build_two_stage_pipeline(only=HOURS), SCHEMA, state_dir=str(tmp_path), capture_losses=False
    ) as test:
        test.pipe(minute_rows(0, 61))
        commit = test._driver.state
        assert {n: t.writer for n, t in commit.targets.items()} == {"hours": "p"}
        assert change_lines(build_two_stage_pipeline(HOURS, MINUTES), commit) == [
            'target "minutes": state has none, config has minutes: it gets the results of stage "minutes" after epoch 0, but '
            "no earlier results"
        ]
        test.restart(build_two_stage_pipeline(HOURS, MINUTES))
        test.pipe(minute_rows(121))
        assert {n: t.writer for n, t in test._driver.state.targets.items()} == {
            "hours": "p~hours",
            "minutes": "p~minutes",
        }
        test.restart(build_two_stage_pipeline(only=HOURS))
        test.pipe(minute_rows(181))
        assert {n: t.writer for n, t in test._driver.state.targets.items()} == {"hours": "p"}


def test_target_of_a_pending_epoch_cannot_change_but_others_can(two_target_pipeline: Any, tmp_path: Path) -> None:
    two_target_pipeline.target("minutes").down = True
    with pytest.raises(
        PublishError, match=r'^target "minutes": memory is down: it did not accept epoch 1; if this cannot be fixed'
    ):
        two_target_pipeline.pipe(minute_rows(121))
    commit, store = two_target_pipeline._driver.state, two_target_pipeline._driver.store
    assert commit.recipients == ["hours", "minutes"] and store.delivered_targets() == {"hours"}
    assert json.loads((tmp_path / "p" / "reached").read_text().splitlines()[0]) == {"epoch": 1, "targets": ["hours"]}
    waits = r"epoch 1 is committed but not yet published, and the config has changed since \(target \"minutes\"\)"
    for other in (build_two_stage_pipeline(HOURS), build_two_stage_pipeline(HOURS, stage_target("moved", "minutes")), build_two_stage_pipeline(HOURS, MINUTES.model_copy(update={"name": "m"}))):  # fmt: skip
        comparison = config_state_comparison.compare_config(
            other, commit, missing=commit.missing(store.delivered_targets())
        )
        assert not comparison.startable and comparison.waits is not None and 'target "minutes"' in comparison.waits
        with pytest.raises(StartError, match=waits):
            two_target_pipeline.restart(other)
    two_target_pipeline.target().down = False
    for held in two_target_pipeline._all_targets.values():
        held.down = False
    elsewhere = build_two_stage_pipeline(stage_target("elsewhere"), MINUTES)
    assert config_state_comparison.compare_config(elsewhere, commit, missing=["minutes"]).startable, (
        "hours has its part: it may go elsewhere"
    )
    hours = next(t for (name, _), t in two_target_pipeline._all_targets.items() if name == "hours")
    before = len(hours.rows)
    two_target_pipeline.restart(elsewhere)
    assert two_target_pipeline.target("minutes").held.height == 3 and len(hours.rows) == before
    assert hours.repeated == 0


def test_skipping_an_epoch_reads_only_the_unpublished_rows(two_target_pipeline: Any) -> None:
    two_target_pipeline.target("minutes").down = True
    with pytest.raises(PublishError):
        two_target_pipeline.pipe(minute_rows(121))
    commit, store = two_target_pipeline._driver.state, two_target_pipeline._driver.store
    pending = _read_pending(store, commit, commit.missing(store.delivered_targets()))
    assert {names: rows.height for names, rows in pending.rows.items()} == {
        ("minutes",): 1
    } and not pending.has_one_target


def test_outdated_and_damaged_delivery_markers_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "reached"
    note = ProgressFiles(LocalStorage(str(tmp_path)))
    assert note.delivered_targets(3) == frozenset()
    note.mark_delivered(3, "a")
    note.mark_delivered(3, "b")
    assert note.delivered_targets(3) == {"a", "b"} and note.delivered_targets(4) == frozenset()
    note.mark_delivered(4, "c")
    assert note.delivered_targets(4) == {"c"} and note.delivered_targets(3) == frozenset()
    for text in ("", "[]", '{"epoch": 4, "targets": ["c", "d"]}\n0123456789abcdef\n', "\xff\n\n"):
        path.write_bytes(text.encode("latin-1"))
        assert note.delivered_targets(4) == frozenset()


def test_commit_in_the_single_target_format_is_readable(two_target_pipeline: Any) -> None:
    record = two_target_pipeline._driver.state.model_dump(mode="json")
    was = record["targets"]["hours"]
    former = {k: v for k, v in record.items() if k not in ("targets", "letters_to", "reached")}
    former["output"] = [{"file": "outputs/x.arrow", "rows": 3, "checksum": ""}]
    former["destination"] = {"target": was["place"], "letters": None, "columns": was["columns"], "upserts": False}
    commit = Commit.model_validate(former)
    assert commit.recipients == ["hours"] and commit.output_of("hours")[0].rows == 3
    assert commit.targets["hours"].writer == "p" and commit.targets["hours"].upserts is False
    assert commit == Commit.model_validate(commit.model_dump(mode="json"))
    assert Commit.model_validate({**former, "destination": {}}).targets == {}
