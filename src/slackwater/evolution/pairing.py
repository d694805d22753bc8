"""Which stage of a state each stage of a config goes on with: by name; what is called otherwise now, by what it is and its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.state.commit import Commit, StageState


@dataclass(frozen=True)
class Pairing:
    """`kept`: per stage of the config the one that it goes on with, None for one that begins; `removed`: those that nobody does."""

    kept: tuple[StageState | None, ...]
    removed: tuple[StageState, ...] = ()

    @property
    def is_same(self) -> bool:
        return not self.removed and None not in self.kept


def paired(names: Sequence[str], commit: Commit) -> Pairing:
    """The stages of a config, by name, beside those of a commit."""
    if len(names) == len(commit.stages) and not {*names} & {s.name for s in commit.stages}:
        return Pairing(commit.stages)  # all are called otherwise
    known = {s.name: s for s in commit.stages}
    kept: list[StageState | None] = [known.pop(name, None) for name in names]
    if len(known) == kept.count(None) == 1:  # one is called otherwise, if it stands where it stood
        (left,) = known.values()
        if commit.stages.index(left) == kept.index(None):
            kept[kept.index(None)] = known.pop(left.name)
    return Pairing(tuple(kept), tuple(known.values()))
