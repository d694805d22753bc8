"""The result of checking a config."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CheckResult:
    """The problems of a config as lines `key: problem`, and the skipped checks (`unchecked`) as lines `key: reason`."""

    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def add(self, key: str, line: str) -> None:
        if f"{key}: {line}" not in self.problems:
            self.problems.append(f"{key}: {line}")

    def skip(self, key: str, line: str) -> None:
        if f"{key}: {line}" not in self.unchecked:
            self.unchecked.append(f"{key}: {line}")
