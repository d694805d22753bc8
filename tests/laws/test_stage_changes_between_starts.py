"""Stages that are renamed, removed, added, replaced or reordered between starts count only rows since they began."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace

import pytest
from tests.laws.generators import seed_runner
from tests.support.case_selection import select_cases

import slackwater as sw
from slackwater.config.pipeline import Pipeline
from slackwater.config.stage import Transform
from slackwater.errors import ConfigError, StateError
from slackwater.evolution.config_state_comparison import compare_config
from slackwater.testing import LocalPipeline

SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "30"))
NAMES = [f"s{n}" for n in range(6)]
COUNT = [sw.Aggregation(agg="count", as_="n")]


@dataclass(frozen=True)
class ExpectedStage:
    """Expected stage: the names of its inputs, and the number of rows counted since the stage began."""

    name: str
    reads: tuple[str, ...]
    counted: int = 0
    formerly: str | None = None


def day_window() -> sw.Window:
    return sw.Window(
        kind="tumbling",
        duration_ms="24h",
        group_by=["user"],
        max_groups_per_window=10,
        aggregations=COUNT,
        lateness_ms="20m",
    )


def pipeline_with_stages(stages: list[ExpectedStage], store: str = "files") -> Pipeline:
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name=n, dataframe=object()) for n in "ab"],
        connections={"t": sw.DeltaConnection()},
        stages=[sw.Stage(name=s.name, from_=list(s.reads), formerly=s.formerly, window=day_window()) for s in stages],
        targets=[
            sw.Target(name=f"t_{s.name}", from_=s.name, connection="t", path=s.name, mode="merge") for s in stages
        ],
        state_store=sw.StateStore(kind="files", path="s")
        if store == "files"
        else sw.StateStore(kind="postgres", url="postgresql://u@h/d"),
    )  # fmt: skip


BASE = ExpectedStage("base", ("a", "b"))


def draw_next_stages(stages: list[ExpectedStage], rng: random.Random) -> list[ExpectedStage]:
    """Return the stages of the next start. A renamed stage sets `formerly` or begins empty."""
    after = [replace(s, formerly=rng.choice([None, s.formerly])) for s in stages]
    before = {s.name for s in stages}
    for _ in range(rng.randint(1, 3)):
        free = [n for n in NAMES if n not in {s.name for s in after} | before | {s.formerly for s in after}]
        renamable = [s for s in after if s.name != "base" and s.name in before]
        action = rng.choice(["rename", "rename silently", "remove", "add", "replace", "reorder", "reads"])
        if action == "add" and free and len(after) < 4:
            after.insert(rng.randint(0, len(after)), ExpectedStage(rng.choice(free), (rng.choice("ab"),)))
        elif action == "reorder":
            rng.shuffle(after)
        elif renamable and action == "remove" and len(after) > 2:
            after.remove(rng.choice(renamable))
        elif renamable and free and action == "replace":
            after[after.index(rng.choice(renamable))] = ExpectedStage(rng.choice(free), (rng.choice("ab"),))
        elif renamable and action == "reads":
            one = rng.choice(renamable)
            after[after.index(one)] = replace(one, reads=(rng.choice("ab"),))
        elif renamable and free and action.startswith("rename"):
            one, name = rng.choice(renamable), rng.choice(free)
            silent = action.endswith("silently")
            former = None if silent else one.name
            after[after.index(one)] = replace(one, name=name, formerly=former, counted=0 if silent else one.counted)
    return after


def check_random_stage_changes(seed: int) -> None:
    rng, stages, moment = random.Random(seed), [BASE, ExpectedStage("s0", ("a",))], 0
    with LocalPipeline(pipeline_with_stages(stages), {"user": "string"}, capture_losses=False) as test:
        for _ in range(rng.randint(2, 5)):
            sent = {s: rng.randint(0, 5) for s in "ab"}
            for _ in range(2):
                moment += 1
                test.pipe({s: [{"user": "u", "ts": moment * 1_000_000 + i} for i in range(n)] for s, n in sent.items()})
            stages = [replace(s, counted=s.counted + 2 * sum(sent[r] for r in s.reads)) for s in stages]
            after = draw_next_stages(stages, rng)
            if rng.random() < 0.3:
                test.crash("commit.after")
            try:
                planned = compare_config(pipeline_with_stages(after), test._driver.state)
            except ConfigError:
                continue  # a former name that is in use
            if planned.startable:
                test.restart(pipeline_with_stages(after))
                stages = after
            else:
                with pytest.raises(StateError, match="the state has both"):
                    test.restart(pipeline_with_stages(after))
                test.restart(pipeline_with_stages(stages))
        test.flush()
        for stage in stages:
            held = test.target(f"t_{stage.name}").held
            assert (held["n"].sum() if held.height else 0) == stage.counted, stage


@pytest.mark.parametrize("first", select_cases(range(0, SEEDS, 10)))
def test_each_stage_counts_the_rows_since_it_began(first: int) -> None:
    seed_runner.hide_warnings()
    for seed in range(first, first + 10):
        try:
            check_random_stage_changes(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def plan_stage_changes(
    before: list[ExpectedStage], after: list[ExpectedStage], store: str = "files"
) -> dict[str, tuple[str, str, str]]:
    with LocalPipeline(pipeline_with_stages(before), {"user": "string"}, capture_losses=False) as test:
        test.pipe({"a": [{"user": "u", "ts": 0}]})
        changes = compare_config(pipeline_with_stages(after, store), test._driver.state).changes
    return {c.key: (c.verdict, c.level, c.how) for c in changes if not c.key.startswith("target")}


def test_plan_reports_the_change_of_each_stage() -> None:
    one = [BASE, ExpectedStage("s0", ("a",))]
    replaced = plan_stage_changes(one, [BASE, ExpectedStage("s1", ("a",))])
    assert replaced['stage "s0"'][:2] == ("migrated", "warning")
    assert "it is removed" in replaced['stage "s0"'][2]
    assert "new stage, which begins empty" in replaced['stage "s1"'][2]
    assert "renamed stage of the state (s0), set formerly" in replaced['stage "s1"'][2]
    renamed = plan_stage_changes(one, [BASE, ExpectedStage("s1", ("a",), formerly="s0")])
    assert renamed == {'stage "s1"': ("compatible", "info", "it is renamed, and keeps its state")}
    reads = plan_stage_changes(one, [BASE, ExpectedStage("s0", ("b",))])
    assert reads["stages[1].from"][:2] == ("compatible", "warning")
    assert "reads another source: open windows keep the rows" in reads["stages[1].from"][2]
    unknown = plan_stage_changes(one, [BASE, ExpectedStage("s1", ("a",), formerly="s00")])
    assert unknown['stage "s1"'][0] == "rebuild"
    assert (
        'formerly = "s00": the state has no such stage; correct or remove it; did you mean "s0"?'
        in unknown['stage "s1"'][2]
    )
    done = plan_stage_changes([BASE, ExpectedStage("s1", ("a",))], [BASE, ExpectedStage("s1", ("a",), formerly="s0")])
    assert done == {}, "an earlier start carried it out"
    both = plan_stage_changes(
        [BASE, ExpectedStage("s0", ("a",)), ExpectedStage("s1", ("a",))],
        [BASE, ExpectedStage("s1", ("a",), formerly="s0")],
    )
    assert "the state has both" in both['stage "s1"'][2]


def test_postgres_store_refuses_a_stage_that_changes_position() -> None:
    """The name of a state table contains the position of the stage. A stage with a known name is refused too."""
    three = [BASE, ExpectedStage("s0", ("a",)), ExpectedStage("s1", ("b",))]
    for after in ([three[0], three[2], three[1]], [BASE, ExpectedStage("s2", ("b",)), three[2]], [BASE, three[2]]):
        verdicts = plan_stage_changes(three, after, "postgres")
        refused = [how for verdict, _, how in verdicts.values() if verdict == "rebuild"]
        assert refused and all("in Postgres, the name of a state table contains the position" in how for how in refused)
    assert (
        plan_stage_changes(three, [*three[:2], ExpectedStage("s2", ("b",), formerly="s1")], "postgres")['stage "s2"'][0]
        == "compatible"
    )


@pytest.mark.parametrize(
    ("stages", "line"),
    [
        ([ExpectedStage("s0", ("a",), formerly="s0"), BASE], '"s0" is the current name of the stage; remove formerly'),
        (
            [ExpectedStage("s0", ("a",), formerly="base"), BASE],
            '"base" is the current name of another stage; give that stage another name',
        ),
        (
            [ExpectedStage("s0", ("a",), formerly="x"), ExpectedStage("s1", ("a",), formerly="x"), BASE],
            '2 stages have formerly = "x", but only one',
        ),
    ],
)
def test_former_name_must_identify_exactly_one_stage(stages: list[ExpectedStage], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        pipeline_with_stages(stages)


def pipeline_with_transform(**more: str) -> Pipeline:
    return Pipeline(
        name="law",
        sources=[sw.Source(name=n, dataframe=object()) for n in "ab"],
        connections={"t": sw.DeltaConnection()},
        transform=Transform(window=day_window(), **more),
        target=sw.Target(name="t_base", connection="t", path="base", mode="merge"),
        state_store=sw.StateStore(kind="files", path="s"),
    )


def test_formerly_option_maps_a_transform_to_the_state_of_a_stage() -> None:
    """A [transform] has the implicit name "transform". One of several stages can continue it, and vice versa."""
    later = ExpectedStage("s0", ("a",))
    with LocalPipeline(pipeline_with_transform(), {"user": "string"}, capture_losses=False) as test:
        test.pipe({s: [{"user": "u", "ts": 0}] for s in "ab"})
        with pytest.raises(
            StateError, match='no stage continues it; set formerly = "transform" in the stage that does'
        ):
            test.restart(pipeline_with_stages([BASE, later]))
        test.restart(pipeline_with_stages([replace(BASE, formerly="transform"), later]))
        test.pipe({s: [{"user": "u", "ts": 1}] for s in "ab"})
        with pytest.raises(StateError, match='the state has the stages "base", "s0"; name the one that'):
            test.restart(pipeline_with_transform())
        test.restart(pipeline_with_transform(formerly="base"))
        test.pipe({s: [{"user": "u", "ts": 2}] for s in "ab"})
        test.flush()
        assert test.target("t_base").held["n"].to_list() == [6]
