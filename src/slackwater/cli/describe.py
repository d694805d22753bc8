"""`check` and `explain`: what a config says, without Spark."""

from __future__ import annotations

from pathlib import Path

from slackwater import plan
from slackwater.cli.text import plural, size
from slackwater.config import toml
from slackwater.errors import StartError


def check_file(file: Path, connect: bool = False) -> None:
    """Print one line for a good config; raise ConfigError for any other, or StartError for what `connect` does not find."""
    pipeline = toml.load(file)
    if connect:
        from slackwater.engine.connect import problems

        found = problems(pipeline)
        if found:
            raise StartError("\n".join(f"{pipeline.name}: {line.removeprefix(f'{pipeline.name}: ')}" for line in found))
    window, state = pipeline.transform.window, plan.state_text(pipeline)
    print(
        f"{file}: ok — {window.kind} window over {plural(len(pipeline.sources), 'source')}, "
        f"{plural(len(window.aggregations), 'aggregation')}, {state}"
    )
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
    print(
        f"  state      at most about {size(found.state_bytes)} at {pipeline.transform.window.max_groups_per_window:,} groups"
    )
    for line in found.notes:
        print(f"  note       {line}")
