"""Output of an earlier state in an append-only target. A new state would write all these rows a second time.

state removed, or --rebuild ─▶ a new state ─▶ does the target hold output of an earlier one? ─┬─ fail, and name it
                                                                                              ├─ move it away (files)
                                                                                              └─ keep it and add rows
"""

from __future__ import annotations

from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.target import Target
from slackwater.connectors.connector import connector_for
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import HasPreviousOutput, TargetTable
from slackwater.errors import StartError, Topic

ASIDE, KEEP = "aside", "keep"
CHOICES = (ASIDE, KEEP)


def _previous_outputs(pipeline: Pipeline) -> list[tuple[str, HasPreviousOutput]]:
    """Return the targets in which a new state would add rows to those of an earlier state, each with its config key."""
    targets: list[tuple[str, HasPreviousOutput]] = []
    if pipeline.formerly is not None:  # targets that it wrote to before it was renamed
        targets += _previous_outputs(pipeline.model_copy(update={"name": pipeline.formerly, "formerly": None}))
    for name, target_pipeline in pipeline.per_target.items():
        label = f'target "{name}"' if pipeline.targets else "target"
        if (
            target := _existing_target(target_pipeline, target_pipeline.target, target_pipeline.writer, True)
        ) is not None:
            targets.append((label, target))
    if pipeline.dead_letter is not None:
        target = _existing_target(pipeline, pipeline.dead_letter, f"{pipeline.name}-letters", False)
        targets += [] if target is None else [("dead_letter", target)]
    return targets


def _existing_target(pipeline: Pipeline, spec: Target, writer: str, results: bool) -> HasPreviousOutput | None:
    connection = resolve_connection(spec.connection, pipeline.connections)
    kind = connection.kind if connection is not None else ""
    if results and spec.upserts(kind, pipeline.target_stage.transform.window):
        return None  # an upsert replaces rows
    if connection is None:
        return None
    target = connector_for(connection).target_with_marker(spec, TargetTable(writer, (), None))
    return target if isinstance(target, HasPreviousOutput) else None


def check_previous_output(pipeline: Pipeline, choice: str | None) -> list[str]:
    """Return a line for each output of an earlier state that a new state would add rows to.

    `choice`: one of CHOICES, or None if the user made no choice; in that case earlier output raises StartError.
    """
    notices = []
    remembers = pipeline.state_store is not None and pipeline.state_store.kind != "in_memory"
    for name, target in _previous_outputs(pipeline):
        if (output_text := target.describe_previous_output()) is None or (
            choice == ASIDE and isinstance(target, FilesTarget)
        ):
            continue
        # dead letters are a log; and without a durable state, every run starts over
        if choice == KEEP or name == "dead_letter" or not remembers:
            notices.append(f"{name}: {output_text}; new rows are added to them")
            continue
        offer = (
            "move them away with --put-aside-output"
            if isinstance(target, FilesTarget)
            else "empty it, or name another target"
        )
        raise StartError(
            f"{pipeline.name}: {name} holds {output_text}. This start has no state and would write every row again; "
            f"{offer}, or add to them with --keep-output; nothing was changed",
            Topic.TARGET_OF_OTHER_STATE,
        )
    return notices


def move_previous_output(pipeline: Pipeline) -> list[str]:
    """Move output files of earlier states away, and return a line about each new location.

    The runner must hold the lock.
    """
    moved = []
    for name, target in _previous_outputs(pipeline):
        if isinstance(target, FilesTarget) and (location := target.put_aside()) is not None:
            moved.append(
                f"{name}: the files of the previous state are now in {location}; remove them when you no longer need them"
            )
    return moved
