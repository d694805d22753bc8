"""Match each stage of a config with a stage of the state, by its name or its `formerly` setting.

config                               state       continues
name = "visits"                      visits      visits
name = "calls", formerly = "rings"   rings       rings, which is called "calls" from then on
name = "calls", formerly = "rings"   calls       calls, which was renamed at an earlier start
name = "logins"                                  nothing: it starts empty
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.pipeline import TRANSFORM
from slackwater.state.commit import Commit, StageState
from slackwater.state.migrations import UNNAMED


@dataclass(frozen=True)
class StageMatch:
    """The result of matching stages.

    Args:
        matched: For each stage of the config, the stage of the state that it continues; None for a new stage.
        removed: The stages of the state that no stage of the config continues.
        renamed: The former names of renamed stages, by current name.
        problems: Why a match is unclear, by stage.
    """

    matched: tuple[StageState | None, ...]
    removed: tuple[StageState, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def match_stages(former_names: Mapping[str, str | None], commit: Commit) -> StageMatch:
    """Match the stages of a config with those of a commit.

    `former_names`: the `formerly` setting of each stage in the config, by name and in order.
    """
    state = {s.name: s for s in commit.stages}
    origins: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name, former in former_names.items():
        if name in state:
            origins[name] = name
            if former in state and former not in former_names:
                problems[name] = (
                    f'the state has both "{name}" and "{former}", but only one of them can continue as "{name}"; '
                    f'remove formerly to continue with "{name}", or rename one of them in a separate start'
                )
        elif former in state and former not in former_names:
            origins[name] = str(former)
        elif former is not None:
            problems[name] = (
                f'formerly = "{former}": the state has no such stage; correct or remove it{suggest_or_list_words(former, state)}'
            )
    _pair_unnamed(list(former_names), commit, origins)
    matched = tuple(None if (origin := origins.get(name)) is None else state[origin] for name in former_names)
    removed = tuple(s for s in commit.stages if s.name not in origins.values())
    problems |= _problems_of_unnamed(former_names, commit, removed, problems)
    renamed = {name: origin for name, origin in origins.items() if name != origin}
    today = {origin: name for name, origin in renamed.items()}
    reading = (None if s is None else _with_inputs(s, today, commit) for s in matched)
    return StageMatch(tuple(reading), removed, renamed, problems)


def _pair_unnamed(names: list[str], commit: Commit, origins: dict[str, str]) -> None:
    """Match stages without a stored name (state format 2) by position, and add the matches to `origins`."""
    if len(names) != len(commit.stages):
        return
    for name, state in zip(names, commit.stages, strict=True):
        if state.name in UNNAMED and name not in origins:
            origins[name] = state.name


def _problems_of_unnamed(
    former_names: Mapping[str, str | None],
    commit: Commit,
    removed: tuple[StageState, ...],
    problems: Mapping[str, str],
) -> dict[str, str]:
    """Return a problem if a change between [transform] and [[stages]] loses the state.

    Args:
        former_names: The `formerly` setting of each stage in the config, by name.
        commit: The commit of the state.
        removed: The stages of the state that no stage of the config continues.
        problems: The problems so far.
    """
    before = [s.name for s in commit.stages]
    if before == [TRANSFORM] and removed and not problems:
        how = f'the state belongs to [transform], but no stage continues it; set formerly = "{TRANSFORM}" in the stage that does'
        return {TRANSFORM: how}
    if list(former_names) == [TRANSFORM] and TRANSFORM not in before and len(removed) == len(before) and not problems:
        listed = ", ".join(f'"{n}"' for n in before)
        return {TRANSFORM: f"the state has the stages {listed}; name the one that [transform] continues: formerly = …"}
    return {}


def _with_inputs(state: StageState, today: Mapping[str, str], commit: Commit) -> StageState:
    """Return the stage with the current names of its input stages. `today`: current names by former name."""
    clocks = {n if n in commit.sources else today.get(n, n): clock for n, clock in state.clocks.items()}
    return state if clocks.keys() == state.clocks.keys() else state.model_copy(update={"clocks": clocks})
