"""`check` and `explain`: what a config says, without Spark."""

from __future__ import annotations

from pathlib import Path

from slackwater import plan
from slackwater.cli.text import plural, size
from slackwater.config import toml
from slackwater.config.join import Join
from slackwater.errors import StartError


def check_file(file: Path, connect: bool = False) -> None:
    """Print one line for a good config; raise ConfigError for any other, or StartError for what `connect` does not find."""
    pipeline = toml.load(file)
    if connect:
        from slackwater.engine.connect import problems

        found = problems(pipeline)
        if found:
            raise StartError("\n".join(f"{pipeline.name}: {line.removeprefix(f'{pipeline.name}: ')}" for line in found))
    step = pipeline.transform.step
    if isinstance(step, Join):
        what = f"{plan.join_text(step)} on {plural(len(step.left_keys), 'key')}"
    else:
        aggregations = plural(len(step.aggregations), "aggregation")
        what = f"{step.kind} window over {plural(len(pipeline.sources), 'source')}, {aggregations}"
    print(f"{file}: ok — {what}, {plan.state_text(pipeline)}")
    for line in plan.build(pipeline).notes:
        print(f"{file}: note: {line}")


def explain_file(file: Path) -> None:
    """Print the stages a row passes, the guarantee and the projected state size."""
    pipeline = toml.load(file)
    found = plan.build(pipeline)
    print(f"{pipeline.name}\n")
    for stage in found.stages:
        print(f"  {stage.name:<11}{stage.where:<8}{stage.title}")
        for line in stage.lines:
            print(f"  {'':<19}{line}")
    print(f"\n  delivery   {found.guarantee}")
    step = pipeline.transform.step
    if isinstance(step, Join):
        kept = plan.kept_text(step, pipeline)
    else:
        kept = (f"at most about {size(found.state_bytes or 0)} at {step.max_groups_per_window:,} groups",)
    for i, line in enumerate(kept):
        print(f"  {'' if i else 'state':<11}{line}")
    for line in found.notes:
        print(f"  note       {line}")
