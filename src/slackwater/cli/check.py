"""`check` and `explain`: validate and describe a config without Spark."""

from __future__ import annotations

import re
from pathlib import Path

from slackwater import explain
from slackwater.config import config_key_docs, sql_check, toml
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.window import Window
from slackwater.core.humanize import plural
from slackwater.errors import ConfigError, StartError
from slackwater.runner import local_paths
from slackwater.secrets import mask_secrets
from slackwater.spark import object_store_connectors


def check_file(file: Path, connect: bool = False) -> None:
    """Check a config. Print its problems, each with the page that documents the key. See `_check_config`."""
    try:
        _check_config(file, connect)
    except ConfigError as error:
        places = dict.fromkeys(
            _key_page(line.removeprefix(f"{file}: ")) for line in error.problems if _names_key(file, line)
        )
        if places:
            error.further = (f"the keys are documented in {', '.join(places)}",)
        raise


def _names_key(file: Path, line: str) -> bool:
    return re.match(r"[\w\"-][^ ]*: ", line.removeprefix(f"{file}: ")) is not None


def _key_page(line: str) -> str:
    return config_key_docs.find_doc_link(line.partition(": ")[0])


def _check_config(file: Path, connect: bool) -> None:
    """Print one line and notes for a valid config.

    Raises ConfigError for an invalid config. With `connect`, also raises StartError for systems and tables that do not
    fit the config.
    """
    pipeline, problems = toml.load_draft(file)
    checked = sql_check.check_draft_sql(pipeline) if problems else sql_check.check_sql(pipeline)
    paths = () if problems else local_paths.unwritable_directories(pipeline)
    problems += [f"{file}: {line}" for line in (*checked.problems, *paths)]
    if problems:
        raise ConfigError(problems)
    local_paths.check_moved_directories(pipeline)
    notes = list(explain.build_plan(pipeline).notes)
    if connect:
        from slackwater.runner import check_connections as connecting

        unreachable = connecting.find_connection_problems(pipeline)
        if unreachable:
            raise StartError(
                "\n".join(f"{pipeline.name}: {line.removeprefix(f'{pipeline.name}: ')}" for line in unreachable)
            )
        notes += connecting.find_connection_notes(pipeline)
    (before, first), *more = pipeline.stage_pipelines.items()
    description = _describe_step(first)
    for name, stage_pipeline in more:
        read = [w.name for w in stage_pipeline.input_paths]
        over = "what it emits" if read == [before] else " and ".join(f'"{n}"' for n in read)
        source_count = plural(len(stage_pipeline.sources), "source")
        description, before = (
            f"{description}, then {_describe_step(stage_pipeline).replace(f'over {source_count}', f'over {over}')}",
            name,
        )
    print(mask_secrets(f"{file}: ok — {description}, {explain.describe_state_location(pipeline)}"))
    for line in notes:
        print(mask_secrets(f"{file}: note: {line}"))
    for line in object_store_connectors.find_unreadable_sources(pipeline):
        print(mask_secrets(f"{file}: note: {line}; without that a run ends"))
    if not connect:
        for line in local_paths.missing_directories(pipeline):
            print(mask_secrets(f"{file}: note: {line}; a run does not start without it"))
    for line in checked.unchecked:
        print(mask_secrets(f"{file}: not checked: {line}"))


def _describe_step(pipeline: Pipeline) -> str:
    step = pipeline.transform.step
    if isinstance(step, Join):
        return f"{explain.describe_join(step)} on {plural(len(step.left_keys), 'key')}"
    if not isinstance(step, Window):
        return f"{step.summary().title} over {plural(len(pipeline.sources), 'source')}"
    aggregations = plural(len(step.aggregations), "aggregation")
    return f"{step.kind} window over {plural(len(pipeline.sources), 'source')}, {aggregations}"


def explain_file(file: Path) -> None:
    """Print the stages that a row passes through, the delivery guarantee, and the projected size of the state."""
    print(explain.build_plan(toml.load(file)))
