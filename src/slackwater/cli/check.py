"""`check`, `explain` and `test`: check and describe a config, and run its tests."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from slackwater import explain
from slackwater.config import static_sql_check, toml
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import find_doc_link
from slackwater.config.window import Window
from slackwater.core.humanize import plural
from slackwater.errors import ConfigError, StartError
from slackwater.runner import local_paths
from slackwater.secret_masking import mask_secrets
from slackwater.spark.sessions import spark_jars

# -- check and explain -------------------------------------------------------------------------------------------------


def check_file(file: Path, connect: bool = False) -> None:
    """Check a config. If it is valid, print a summary and notes.

    Args:
        file: The config.
        connect: Whether to also check that the external systems are reachable and match the config.

    Raises ConfigError if the config is invalid, with links to the documentation of the keys concerned. Raises
    StartError if directories have moved, or if the check of an external system fails.
    """
    try:
        _check_config(file, connect)
    except ConfigError as error:
        lines = [line.removeprefix(f"{file}: ") for line in error.problems]
        keys = [line.partition(": ")[0] for line in lines if re.match(r"[\w\"-][^ ]*: ", line)]
        if pages := dict.fromkeys(find_doc_link(Pipeline, key) for key in keys):
            error.further = (f"the keys are documented in {', '.join(pages)}",)
        raise


def _check_config(file: Path, connect: bool) -> None:
    """Check a config, and print a summary and notes. Raises ConfigError or StartError if a check fails."""
    pipeline, problems = toml.load_draft(file)
    checked = static_sql_check.check_draft_sql(pipeline) if problems else static_sql_check.check_sql(pipeline)
    paths = () if problems else local_paths.unwritable_directories(pipeline)
    problems += [f"{file}: {line}" for line in (*checked.problems, *paths)]
    if problems:
        raise ConfigError(problems)
    local_paths.check_moved_directories(pipeline)
    notes = list(explain.build_plan(pipeline).notes)
    if connect:
        from slackwater.runner import connection_checks as connecting

        unreachable = connecting.find_connection_problems(pipeline)
        if unreachable:
            lines = (
                line.removeprefix(f"{pipeline.name}: ") for error in unreachable for line in str(error).splitlines()
            )
            raise StartError("\n".join(f"{pipeline.name}: {line}" for line in lines), unreachable[0].topic)
        notes += connecting.find_connection_notes(pipeline)
    (before, first), *more = pipeline.stage_pipelines.items()
    description = _describe_step(first)
    for name, stage_pipeline in more:
        read = [w.name for w in stage_pipeline.input_paths]
        over = "its results" if read == [before] else " and ".join(f'"{n}"' for n in read)
        source_count = plural(len(stage_pipeline.sources), "source")
        description, before = (
            f"{description}, then {_describe_step(stage_pipeline).replace(f'over {source_count}', f'over {over}')}",
            name,
        )
    print(mask_secrets(f"{file}: ok — {description}, {explain.describe_state_location(pipeline)}"))
    for line in notes:
        print(mask_secrets(f"{file}: note: {line}"))
    for line in spark_jars.find_unreadable_sources(pipeline):
        print(mask_secrets(f"{file}: note: {line}; otherwise, a run fails"))
    if not connect:
        for line in local_paths.missing_directories(pipeline):
            print(mask_secrets(f"{file}: note: {line}; otherwise, a run does not start"))
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
    """Print the stages of a pipeline, its delivery guarantee, and the projected size of its state."""
    print(explain.build_plan(toml.load(file)))


# -- test --------------------------------------------------------------------------------------------------------------


def run_test_files(path: Path, update: bool = False) -> int:
    """Run the tests at a path, print their outcomes, and return the exit code.

    Exit code 0: all tests pass; 1: a test fails; 2: a test or its config is invalid. `update`: whether to replace the
    expected results of failed tests with the actual results.
    """
    from slackwater.testing import case_file, case_runner

    began = time.monotonic()
    paths, tests, wrong = case_file.find_cases(path), [], 0
    for file in paths:
        try:
            tests.append(case_runner.LoadedCase.read(file))
        except ConfigError as error:
            wrong += 1
            print(mask_secrets(f"WRONG   {file}"))
            for line in error.problems:
                print(mask_secrets(f"  {line}"))
    failed = updated = 0
    if tests:
        print(f"starting Spark for {plural(len(tests), 'test')} …", file=sys.stderr, flush=True)
        with case_runner.quiet_logs():
            session = case_runner.spark_session([t.pipeline for t in tests])
            for test in tests:
                outcome = test.run(session)
                took = f"({outcome.seconds:.2f} s)"
                if not outcome.ok and update and outcome.failed is None:
                    case_runner.update_case(test.path, outcome)
                    updated += 1
                    print(f"updated {test.path} {took}", flush=True)
                elif outcome.ok:
                    print(f"ok      {test.path} {took}", flush=True)
                else:
                    failed, wrong = failed + (not outcome.wrong), wrong + outcome.wrong
                    print(f"{'WRONG ' if outcome.wrong else 'FAILED'}  {test.path} {took}")
                if not outcome.ok:
                    for line in outcome.lines():
                        print(mask_secrets(f"  {line}"), flush=True)
    passed = len(paths) - failed - wrong - updated
    counts = [(passed, "passed"), (failed, "failed"), (wrong, "wrong"), (updated, "updated")]
    counts_text = ", ".join(f"{n} {word}" for n, word in counts if n)
    print(f"{counts_text} in {time.monotonic() - began:.1f} s")
    return 2 if wrong else 1 if failed else 0
