"""The result of checking a state, with a remedy for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """One problem in a state.

    Args:
        place: The file or table with the problem.
        what: A description of the problem.
        epochs: The epochs of the commits that the problem affects.
        remedy: What the user can do about the problem.
    """

    place: str
    what: str
    epochs: tuple[int, ...] = ()
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}"


@dataclass
class VerifyReport:
    """The result of checking a state.

    Args:
        pipeline: The name of the pipeline.
        store: The kind of state store.
        problems: The problems found.
        epochs: The epochs of the commits that were checked.
        sound: The epoch of the last commit without problems; None if every commit has problems.
        files: The number of files, or of tables in a database, that were checked.
        rows: The number of rows that were checked.
        bytes: The number of bytes that were checked.
        unread: The number of stages whose rows were not checked, because the state does not describe their window.
        seconds: The duration of the check in seconds.
    """

    pipeline: str
    store: str
    problems: list[Problem] = field(default_factory=list)
    epochs: tuple[int, ...] = ()
    sound: int | None = None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    unread: int = 0
    seconds: float = 0.0


def format_remedy(problem: Problem, kept_epochs: Sequence[int], sound: int | None, copy: str) -> str:
    """Return the remedy for a problem.

    Args:
        problem: The problem.
        kept_epochs: The epochs of the stored commits, ascending.
        sound: The epoch of the last commit without problems; None if every commit has problems.
        copy: A noun phrase for the backup, such as "a copy of the state directory".
    """
    if problem.epochs and kept_epochs and kept_epochs[-1] not in problem.epochs:
        which = f"epoch {problem.epochs[0]}" if len(problem.epochs) == 1 else f"epochs {_span(problem.epochs)}"
        return f"it is needed only by {which}, and a run continues without it; restore it from {copy}, or leave it"
    if sound is None:
        return f"restore it from {copy}; no kept commit is sound"
    if kept_epochs and sound == kept_epochs[-1]:
        return f"restore it from {copy}"
    return f"restore it from {copy}, or start from epoch {sound}, the last sound commit: slackwater state fork NEW --at {sound}"


def _span(epochs: Sequence[int]) -> str:
    return f"{epochs[0]} to {epochs[-1]}"
