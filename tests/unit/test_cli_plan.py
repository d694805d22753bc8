"""`slackwater plan` over states of the in-process engine: output, exit codes, and starting offsets of a rebuild."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.why_command_fixtures import HOPPING, SESSION, STORY, TUMBLING, run_toml_pipeline

from slackwater.cli.main import main
from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.config.state_comparison import KeyChange
from slackwater.errors import ConfigError, StateError
from slackwater.evolution import config_state_comparison
from slackwater.runner import run_options
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore

Say = Callable[..., tuple[int, list[str]]]
SUM = '[[transform.window.aggregations]]\nagg = "sum"\ncolumn = "amount"\nas = "revenue"\n[target]'
DEAREST = '[[transform.window.aggregations]]\nagg = "max"\ncolumn = "price"\nas = "dearest"\n'


@pytest.fixture(autouse=True)
def _change_to_temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Return a function that runs `slackwater plan p.toml …` and returns the exit code and the printed lines."""

    def command(text: str, *arguments: str) -> tuple[int, list[str]]:
        Path("p.toml").write_text(text)
        monkeypatch.setattr(sys, "argv", ["slackwater", "plan", "p.toml", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), (output.out + output.err).splitlines()

    return command


def read_latest_commit() -> Commit:
    with FilesStore("state", "law").peek() as snapshot:
        assert snapshot is not None
        return snapshot.commit


def find_changes_by_key(text: str) -> dict[str, KeyChange]:
    compared = config_state_comparison.compare_config(toml.loads(text), read_latest_commit())
    return {c.key: c for c in compared.changes}


def test_plan_reports_missing_state(run_plan: Say) -> None:
    assert run_plan(SESSION) == (0, ["law: there is no state yet: the next start creates it"])
    in_memory = TUMBLING.split("[state_store]")[0]
    assert run_plan(in_memory) == (0, ["law: its state is in memory: every start begins with an empty state"])
    assert [p.name for p in Path().iterdir()] == ["p.toml"], "nothing was made"


def test_plan_reports_unchanged_config(run_plan: Say) -> None:
    run_toml_pipeline(SESSION, STORY)
    assert run_plan(SESSION) == (0, ["law: state in epoch 2: nothing changed"])


def test_plan_prints_changes_with_verdicts_and_counts(run_plan: Say) -> None:
    run_toml_pipeline(SESSION, STORY)
    text = (
        SESSION.replace('"10m"', '"20m"').replace('lateness_ms = "1m"', 'lateness_ms = "2m"').replace("[target]", SUM)
    )
    code, lines = run_plan(text)
    assert code == 0
    assert [line.split()[0] for line in lines] == ["migrated", "migrated", "compatible", "law:"]
    assert lines[0] == (
        "migrated    gap: state has 10m, config has 20m: 4 open and retained sessions now last until their last event + 20m; "
        "sessions that now touch are merged, and closed sessions stay closed"
    )
    assert lines[1] == (
        'migrated    aggregation "revenue": state has none, config has sum(amount): 4 open windows compute it only from rows read after '
        "the next start; without new rows, it is NULL, 0 for a count, or an empty list (the start determines the types of its columns); "
        "the target table needs the column"
    )
    assert lines[2].startswith("compatible  lateness: state has 1m, config has 2m: the watermark stays at 2024-03-01T")
    assert (
        lines[3]
        == "law: state in epoch 2: 3 changes, 2 of them migrated in a separate epoch: the next start applies them"
    )


def test_plan_and_start_report_required_rebuild_with_same_message(run_plan: Say) -> None:
    run_toml_pipeline(SESSION, STORY)
    text = SESSION.replace('"1h"', '"30m"').replace('"max"', '"min"')
    code, lines = run_plan(text)
    assert code == 1
    assert [line.split()[0] for line in lines] == ["rebuild", "rebuild", "law:"]
    assert lines[2] == (
        'law: state in epoch 2 needs a rebuild because of max_session_duration, aggregation "dearest": slackwater run p.toml '
        "--rebuild"
    )
    with pytest.raises(StateError, match="was written for another window") as refused:
        run_toml_pipeline(text, [])
    for line in lines[:2]:
        assert line.removeprefix("rebuild     ") in str(refused.value)


def test_plan_prints_json(run_plan: Say) -> None:
    run_toml_pipeline(SESSION, STORY)
    code, (line,) = run_plan(SESSION.replace(DEAREST, ""), "--json")
    report = json.loads(line)
    assert (code, report["epoch"], report["startable"]) == (0, 2, True)
    assert [(c["what"], c["state"], c["config"], c["verdict"]) for c in report["changes"]] == [
        ('aggregation "dearest"', "max price decimal(10,2)", None, "migrated")
    ]
    assert json.loads(run_plan(SESSION.replace('"1h"', '"30m"'), "--json")[1][0])["startable"] is False
    assert set(json.loads(run_plan(SESSION.replace("law", "new"), "--json")[1][0])) == {*report}


@pytest.mark.parametrize(
    ("text", "old", "new", "changed_key", "verdict"),
    [
        (SESSION, '"1h"', '"2h"', "max_session_duration_ms", "migrated"),
        (SESSION, '"1h"', '"59m"', "max_session_duration_ms", "rebuild"),
        (SESSION, '"10m"', '"9m"', "gap_ms", "migrated"),
        (SESSION, '"10m"', '"price"', "gap_ms", "rebuild"),
        (SESSION, '["user"]', '["price"]', "keys", "rebuild"),
        (SESSION, 'lateness_ms = "1m"', 'lateness_ms = "0s"', "lateness_ms", "compatible"),
        (SESSION, 'group_by', 'late_data = "standalone"\nemit_metadata = true\ngroup_by', "late_data", "compatible"),
        (SESSION, 'group_by', 'emit = "updates"\nemit_metadata = true\ngroup_by', "emit", "migrated"),
        (SESSION, 'group_by', 'max_groups_per_window = 7\ngroup_by', "max_groups_per_window", "compatible"),
        (SESSION, 'group_by', 'window_start_column = "begin"\ngroup_by', "window_start_column", "compatible"),
        (SESSION, 'group_by', 'source_idleness_ms = "9s"\ngroup_by', "source_idleness_ms", "compatible"),
        (SESSION, 'path = "state"', 'path = "state"\nshards = 8', "shards", "migrated"),
        (SESSION, 'name = "app"', 'name = "shop"', 'source "shop"', "compatible"),
        (SESSION, '[transform.window]', '[transform]\nsql = "SELECT * FROM source"\n[transform.window]', "transform.sql", "compatible"),
        (SESSION, 'name = "app"', 'name = "shop"', 'source "app"', "compatible"),
        (SESSION, 'path = "out"', 'path = "elsewhere"', "target", "compatible"),
        (TUMBLING, '"5m"', '"6m"', "duration_ms", "rebuild"),
        (TUMBLING, 'group_by', 'offset_ms = "1m"\ngroup_by', "offset_ms", "rebuild"),
        (HOPPING, '"5m"', '"2m"', "hop_ms", "rebuild"),
        (HOPPING, 'kind = "hopping"\nduration_ms = "10m"\nhop_ms = "5m"', 'kind = "tumbling"\nduration_ms = "10m"', "kind", "rebuild"),
    ],
)  # fmt: skip
def test_each_config_change_has_expected_verdict(text: str, old: str, new: str, changed_key: str, verdict: str) -> None:
    run_toml_pipeline(text, [*STORY, STORY[-1]] if text != SESSION else STORY, flush=True)
    assert old in text
    change = find_changes_by_key(text.replace(old, new))[changed_key]
    assert change.verdict == verdict
    assert change.how


def test_removed_stage_is_migrated_with_warning() -> None:
    run_toml_pipeline(SESSION, STORY)
    one = read_latest_commit()
    other = one.stages[0].model_copy(update={"name": "other"})
    two = one.model_copy(update={"stages": (one.stages[0], other)})
    (change,) = config_state_comparison.compare_config(toml.loads(SESSION), two).changes
    assert (change.key, change.after, change.verdict, change.level) == ('stage "other"', None, "migrated", "warning")
    assert "and open windows; its published results stay" in change.how


def test_state_without_window_description_is_not_migrated() -> None:
    run_toml_pipeline(SESSION, STORY)
    commit = read_latest_commit()
    bare = commit.model_copy(update={"stages": (commit.stages[0].model_copy(update={"described": {}}),)})
    compared = config_state_comparison.compare_config(toml.loads(SESSION.replace('"10m"', '"20m"')), bare)
    with pytest.raises(StateError, match="gap: state has 10m, config has 20m: the state does not describe its window"):
        compared.check()
    assert config_state_comparison.compare_config(toml.loads(SESSION), bare).changes == ()


def test_plan_requires_previous_config_while_epoch_is_unpublished(run_plan: Say) -> None:
    run_toml_pipeline(SESSION, STORY, flush=True)
    assert read_latest_commit().staged
    (Path("state/law/published")).write_text("0")
    code, lines = run_plan(SESSION.replace("group_by", 'window_end_column = "until"\ngroup_by'))
    assert code == 1
    assert lines[-1].endswith(
        "is committed but not yet published, and the config has changed since (columns); start once with the previous config, "
        "then change it"
    )
    assert run_plan(SESSION)[0] == 0


def test_plan_takes_under_two_seconds_and_does_not_import_spark() -> None:
    """Measure processor time, because the machine may be busy."""
    run_toml_pipeline(SESSION, STORY)
    code = (
        "import resource, sys; from slackwater.cli.main import main; sys.argv = ['slackwater', 'plan', 'p.toml']\n"
        "try: main()\nfinally: print(sorted({'pyspark', 'pandas'} & set(sys.modules)),"
        " resource.getrusage(resource.RUSAGE_SELF).ru_utime)"
    )
    took = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        loaded, seconds = done.stdout.splitlines()[-1].rsplit(" ", 1)
        assert loaded == "[]"
        took.append(float(seconds))
    assert min(took) < 1.5, took


# -- starting over ---------------------------------------------------------------------------------------------------


def load_kafka_pipeline(*names: str) -> Pipeline:
    sources = "".join(
        f'[[sources]]\nname = "{n}"\nconnection = "bus"\nquery = "{n}"\npayload_format = "json"\nschema = "user STRING"\n'
        for n in names
    )
    text = (
        'name = "p"\n[connections.bus]\nkind = "kafka"\nbootstrap_servers = "b:1"\n' + sources + '[transform.window]\n'
        'kind = "tumbling"\nduration_ms = "1m"\nmax_groups_per_window = 9\ngroup_by = ["user"]\n'
        '[[transform.window.aggregations]]\nagg = "count"\nas = "n"\n'
        '[connections.lake]\nkind = "files"\n[target]\nconnection = "lake"\npath = "out"\n'
        '[state_store]\nkind = "files"\npath = "state"\n'
    )  # fmt: skip
    return toml.loads(text)


def parse_starting_offsets(pipeline: Pipeline, text: str | None) -> Sequence[Any]:
    return [
        s.starting_offsets for s in run_options.set_starting_offsets(pipeline, run_options.parse_offsets(text)).sources
    ]


def test_starting_offsets_are_set_per_source() -> None:
    two = load_kafka_pipeline("a", "b")
    assert parse_starting_offsets(two, None) == [None, None]
    assert parse_starting_offsets(two, "latest") == ["latest", "latest"]
    assert parse_starting_offsets(two, '{"b": {"b": {"0": 5}}}') == [None, {"b": {"0": 5}}]
    assert parse_starting_offsets(two, '{"*": "earliest", "a": "latest"}') == ["latest", "earliest"]
    assert (
        run_options.describe_starting_offsets(run_options.set_starting_offsets(two, {"a": "latest"}))
        == "a at latest, b at earliest"
    )
    assert run_options.describe_starting_offsets(toml.loads(SESSION)) == "web at its first file, app at its first file"
    assert run_options.set_starting_offsets(toml.loads(SESSION), {"*": "earliest"}) == toml.loads(SESSION)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "--from: found soon, expected earliest, latest, or JSON per source"),
        ('{"a": 3}', "--from: found .*, expected earliest, latest, or JSON per source"),
        ('{"aa": "latest"}', '--from: there is no source "aa"; did you mean "a"'),
        ('{"a": {"a": 3}}', '--from: source "a": expected offsets per topic and partition'),
    ],
)
def test_invalid_offsets_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_starting_offsets(load_kafka_pipeline("a"), text)


def test_files_source_cannot_start_at_latest() -> None:
    with pytest.raises(ConfigError, match='source "web" begins with the first of its files and cannot begin elsewhere'):
        parse_starting_offsets(toml.loads(SESSION), "latest")


def test_from_option_requires_rebuild_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("p.toml").write_text(SESSION)
    monkeypatch.setattr(sys, "argv", ["slackwater", "run", "p.toml", "--from", "latest"])
    with pytest.raises(SystemExit):
        main()
    assert "--from: needs --rebuild" in capsys.readouterr().err


def test_starting_over_moves_state_to_another_directory() -> None:
    run_toml_pipeline(SESSION, STORY)
    before = sorted(str(p.relative_to("state/law")) for p in Path("state/law").rglob("*"))
    store = FilesStore("state", "law")
    aside = store.start_over()
    assert aside is not None
    assert Path(aside).name.startswith("law.before-2")
    assert sorted(str(p.relative_to(aside)) for p in Path(aside).rglob("*")) == before
    assert store.epochs() == []
    assert FilesStore("state", "law").runner() is not None, "the lock is held"
    store.close()
    assert FilesStore("state", Path(aside).name).epochs()
    other = FilesStore("state", "new")
    assert other.start_over() is None
    other.close()


def test_a_damaged_state_can_be_started_over() -> None:
    run_toml_pipeline(SESSION, STORY)
    for path in Path("state/law/manifests").iterdir():
        path.write_text("x")
    store = FilesStore("state", "law")
    assert store.start_over() is not None
    store.close()


def test_state_is_unchanged_if_move_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    run_toml_pipeline(SESSION, STORY)

    def refused(self: Path, target: Path) -> Path:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StateError, match=r"cannot be moved to .*; nothing was changed"):
        FilesStore("state", "law").start_over()
    assert read_latest_commit().epoch == 2
