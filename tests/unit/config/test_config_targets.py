"""Several targets in a config: names, input stages, and one-line errors."""

from __future__ import annotations

from typing import Any

import pytest

import slackwater as sw
from slackwater.config import toml
from slackwater.errors import ConfigError, StartError

BASE = """
name = "p"
[connections.lake]
kind = "files"
[connections.db]
kind = "postgres"
url = "postgresql://localhost/x"
[connections.bus]
kind = "kafka"
bootstrap_servers = "localhost:9092"
[[sources]]
name = "clicks"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[[stages]]
name = "visits"
[stages.window]
kind = "session"
gap_ms = "30m"
max_session_duration_ms = "12h"
event_time_column = "ts"
group_by = ["user"]
[[stages.window.aggregations]]
agg = "count"
as = "clicks"
[[stages]]
name = "hours"
[stages.window]
kind = "tumbling"
duration_ms = "1h"
max_groups_per_window = 10
LAST
[[stages.window.aggregations]]
agg = "count"
as = "visits"
[state_store]
kind = "files"
path = "state"
"""


def build_targets_config(*targets: str, last: str = "", more: str = "") -> str:
    return BASE.replace("LAST", last) + "".join(f"[[targets]]\n{t}\n" for t in targets) + more


LAKE = 'connection = "lake"\npath = "out"'
TABLE = 'connection = "db"\ntable = "visits"\nfrom = "visits"'


def test_targets_are_named_after_the_stages_that_they_read() -> None:
    pipeline = toml.loads(
        build_targets_config(
            LAKE,
            TABLE,
            'name = "topic"\nconnection = "bus"\ntopic = "t"\nfrom = "visits"',
            TABLE.replace('"visits"', '"more"', 1),
        )
    )
    per_target = pipeline.per_target
    assert {n: narrowed.target.from_ for n, narrowed in per_target.items()} == {
        "hours": "hours",
        "visits": "visits",
        "topic": "visits",
        "visits-2": "visits",
    }
    assert [narrowed.target_stage.transform.step.kind for narrowed in per_target.values()] == [
        "tumbling",
        "session",
        "session",
        "session",
    ]
    assert [narrowed.writer for narrowed in per_target.values()] == ["p~hours", "p~visits", "p~topic", "p~visits-2"]
    assert toml.loads(sw.to_toml(pipeline)) == pipeline
    assert pipeline.one_target("topic").target.topic == "t"
    assert per_target["topic"].per_target == {"topic": per_target["topic"]}


def test_a_single_target_writes_under_the_name_of_the_pipeline() -> None:
    pipeline = toml.loads(build_targets_config(more="[target]\n" + LAKE))
    assert [(n, narrowed.writer) for n, narrowed in pipeline.per_target.items()] == [("hours", "p")]
    assert pipeline.one_target() == pipeline.per_target["hours"]
    assert sw.to_toml(pipeline).count("[target]") == 1


def test_a_stage_name_may_be_an_invalid_file_name() -> None:
    text = build_targets_config(LAKE, TABLE).replace('"visits"', '"a/../b"')
    names = [narrowed.writer for narrowed in toml.loads(text).per_target.values()]
    assert names[0] == "p~hours" and "/" not in names[1] and names[1].startswith("p~")
    long = (
        toml.loads(build_targets_config(LAKE, TABLE).replace('name = "p"', f'name = "{"x" * 199}"'))
        .per_target["visits"]
        .writer
    )
    assert (
        len(long) <= 200
        and long
        != toml.loads(build_targets_config(LAKE, TABLE).replace('name = "p"', f'name = "{"x" * 199}"'))
        .per_target["hours"]
        .writer
    )


@pytest.mark.parametrize(
    ("targets", "more", "lines"),
    [
        ([], "", ["target: missing; define the destination of the results in [target]"]),
        ([], "[target]\n" + LAKE + "\n[[targets]]\n" + TABLE, ["targets: cannot be combined with [target]; a pipeline has either [target] or [[targets]]; remove one of them"]),
        ([LAKE + '\nfrom = "hour"'], "", ['targets[0].from: found "hour", which is not a stage; did you mean "hours"?']),
        ([TABLE], "", ['stages[1]: stage "hours" is unused; name it in the `from` of a later stage or of a target, or remove the stage']),
        ([], "[target]\n" + TABLE, ['stages[1]: stage "hours" is unused; name it in the `from` of a later stage or of a target, or remove the stage']),
        ([LAKE, LAKE.replace('"out"', '"./out"')], "", ['targets[1]: writes to the same location as targets[0] ("out"); choose another location']),
        ([LAKE, TABLE, TABLE.replace('"visits"', '"public.visits"', 1)], "", ['targets[2]: writes to the same location as targets[1] ("public.visits"); choose another location']),
        ([LAKE + '\nname = "a"', TABLE + '\nname = "a"'], "", ['targets: 2 targets are called "a"; give each target a unique name']),
        ([LAKE + '\nname = "a b"'], "", ['targets[0].name: found "a b", expected a name of at most 100 letters, digits, ".", "_" and "-" that begins with a letter or digit']),
        ([LAKE + '\nfrm = "hours"'], "", ['targets[0].frm: unknown key; did you mean "from"?']),
        ([LAKE.replace("lake", "lak")], "", ['targets[0].connection: found "lak", which is not a connection; did you mean "lake"?']),
        ([LAKE, 'connection = "db"\npath = "x"'], "", ['targets[1].path: applies only to connections of kind "files" or "delta", but this one is "postgres"; set the key "table" instead: a postgres target needs a table, as in "public.sessions"']),
        ([LAKE, 'connection = "db"\ntable = "slackwater_targets"'], "", ['targets[1].table: found "slackwater_targets", which is a table name that Slackwater reserves; choose another name']),
    ],
)  # fmt: skip
def test_each_invalid_target_is_refused_with_a_one_line_error(targets: list[str], more: str, lines: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        toml.loads(build_targets_config(*targets, more=more))
    assert [line.removeprefix("<config>: ").removeprefix("<string>: ") for line in error.value.problems] == lines


def test_more_than_sixteen_targets_are_refused() -> None:
    targets = [LAKE.replace("out", f"out{n}") for n in range(17)]
    with pytest.raises(ConfigError, match="targets: found 17 targets, expected at most 16"):
        toml.loads(build_targets_config(*targets))


def test_emit_updates_needs_an_upserting_target_and_standalone_an_append_only_target() -> None:
    updates = 'emit = "updates"'
    into = 'connection = "db"\ntable = "hours"'
    toml.loads(build_targets_config(into, LAKE.replace("path", 'from = "visits"\npath'), last=updates))
    with pytest.raises(ConfigError, match="a files target is append-only") as error:
        toml.loads(build_targets_config(into, LAKE, last=updates))
    assert len(error.value.problems) == 1
    toml.loads(build_targets_config(into, LAKE, last=updates + "\nemit_metadata = true"))
    with pytest.raises(ConfigError, match=r'"standalone" needs an append-only target'):
        toml.loads(build_targets_config(LAKE, into, last='late_data = "standalone"\nemit_metadata = true'))


def test_dead_letter_target_does_not_accept_a_stage() -> None:
    letters = '[dead_letter]\nconnection = "lake"\npath = "letters"\nfrom = "visits"\n'
    text = build_targets_config(LAKE, more=letters).replace(
        '[[stages]]\nname = "visits"', '[[stages]]\nname = "visits"\non_error = "dlq"'
    )
    with pytest.raises(
        ConfigError,
        match=r"dead_letter\.from: applies only to \[\[targets\]\], because \[dead_letter\] receives the dead letters of all stages",
    ):
        toml.loads(text)


@pytest.mark.parametrize(("name", "line"), [(None, r"p has 2 targets \(hours, visits\); choose one of them with --target NAME"), ("visit", 'found "visit", which is not a target; did you mean "visits"')])  # fmt: skip
def test_a_command_that_needs_one_target_lists_the_targets(name: str | None, line: str) -> None:
    with pytest.raises(StartError, match=line):
        toml.loads(build_targets_config(LAKE, TABLE)).one_target(name)


def test_kafka_eos_requires_exactly_once_delivery_of_every_topic() -> None:
    topic = 'connection = "bus"\ntopic = "t"'
    eos = 'crash_recovery = "kafka_eos"\nevent_time_column = "ts"'

    def text(*targets: str) -> str:
        return build_targets_config(*targets).replace('event_time_column = "ts"', eos)

    two_targets: list[Any] = [LAKE, topic + '\ndelivery = "exactly_once"']
    toml.loads(text(*two_targets))
    with pytest.raises(ConfigError, match='"kafka_eos" needs a kafka target'):
        toml.loads(text(*two_targets, topic.replace('"t"', '"u"')))
