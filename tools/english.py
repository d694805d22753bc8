"""Lint of the project's English: `python -m tools.english`.

It rejects names that say nothing, docstrings that do not stand alone, phrases that are not idiomatic, and long commit subjects.
The reserved words in `docs/architecture.md` are listed with the words to use instead. Exceptions stand in
`tools/english_exceptions.txt`, one line each: the rule, the place, the name or phrase, and a reason after `#`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = ("src", "benchmarks", "docgen", "tools", "tests")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
MOST_EXCEPTIONS = 20
SUBJECTS_SINCE = "2026-11-25T09:00:00Z"
MOST_SUBJECT = 72

VAGUE_NAMES = frozenset(
    [
        "found",
        "given",
        "made",
        "own",
        "mine",
        "there",
        "what",
        "left",
        "wanted",
        "known",
        "kept",
        "told",
        "asked",
        "at",
        "of",
    ]  # they do not say what they hold
)
VAGUE_PUBLIC = VAGUE_NAMES | frozenset(
    ["aside", "alike", "beside", "within", "seen", "heard", "said", "former", "in", "on", "to", "onward"]
)
OPENINGS = ("Of ", "The same", "Whether")
PHRASES = {
    r"(?<![Tt]here )(?<!\bit )\bis no (?!longer\b|more\b|later\b|earlier\b|less\b|greater\b|other\b|one\b|such\b|need\b|way\b)": "is not a",
    r"\b(?<!what )(?<!that )is not there\b": "does not exist",
    r"\banew\b": "again",
    r"\bonce more\b": "again",
    r"\bwhoever\b": "anyone who, or name them",
    r"\bhow manieth\b": "the ordinal of",
    r"(?<![-\w/{.`\"'])beside(?![-\w/}=.`\"'(:\[,)])": "next to, or besides",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bis told so\b": "fails with a message",
}


@dataclass(frozen=True)
class LintFinding:
    """A place that breaks a rule. `name`: the name or phrase, by which an exception refers to it."""

    rule: str
    file: str
    line: int
    name: str
    advice: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: found {self.name!r}; {self.advice}"


def read_python_files(*roots: str) -> Iterator[tuple[str, str]]:
    """Yield the path from the root of the project, and the text, of each Python file."""
    for root in roots:
        for path in sorted((ROOT / root).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def find_vague_local_names(tree: ast.AST, file: str) -> Iterator[LintFinding]:
    """Find variables and parameters with vague names. `left` is the name of a side next to `right`."""
    sides = {n.id if isinstance(n, ast.Name) else n.arg for n in ast.walk(tree) if isinstance(n, ast.Name | ast.arg)}
    allowed = {"left"} if any(name.startswith("right") for name in sides) else set()
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        if name in VAGUE_NAMES - allowed:
            yield LintFinding("vague-name", file, node.lineno, name, "name what it holds")  # type: ignore[attr-defined]


def find_vague_public_names(tree: ast.AST, file: str) -> Iterator[LintFinding]:
    """Find functions, methods and classes whose whole name is a preposition, an adverb or a participle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower() in VAGUE_PUBLIC:
            yield LintFinding("vague-public-name", file, node.lineno, node.name, "use a noun, or a verb and an object")


def find_dependent_docstrings(tree: ast.AST, file: str) -> Iterator[LintFinding]:
    """Find docstrings that do not stand alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            for opening in OPENINGS:
                if text.startswith(opening):
                    line = getattr(node, "lineno", 1)
                    yield LintFinding("docstring", file, line, opening.strip(), "begin with a verb or a noun phrase")


def find_duplicate_class_names(files: Iterator[tuple[str, str]]) -> Iterator[LintFinding]:
    """Find classes of one name in several modules."""
    owners: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file, text in files:
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                owners[node.name].append((file, node.lineno))
    for name, places in owners.items():
        for file, line in places[1:]:
            yield LintFinding(
                "class-name", file, line, name, f"{places[0][0]} has a class of this name; choose another"
            )


def find_bad_phrases(file: str, text: str) -> Iterator[LintFinding]:
    """Find phrases that a native reader stumbles over."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in PHRASES.items():
            for match in re.finditer(pattern, line):
                yield LintFinding("phrase", file, number, match[0].strip(), f"say: {instead}")


def read_prose_files() -> Iterator[tuple[str, str]]:
    """Yield pages, and the strings, docstrings and comments of the package, with their lines."""
    for page in PAGES:
        path = ROOT / page
        for file in [path] if path.is_file() else sorted(path.rglob("*.md")):
            yield file.relative_to(ROOT).as_posix(), file.read_text()
    for file in sorted((ROOT / "src").rglob("*.html")):
        yield file.relative_to(ROOT).as_posix(), file.read_text()
    yield from read_python_files("src")


def find_long_commit_subjects() -> Iterator[LintFinding]:
    """Find commits with a long subject. A copy without its history has none."""
    command = ["git", "log", f"--since={SUBJECTS_SINCE}", "--format=%h %s"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in ran.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > MOST_SUBJECT:
            yield LintFinding("subject", commit, 0, subject, f"use at most {MOST_SUBJECT} characters")


def read_exceptions() -> set[tuple[str, str, str]]:
    """Read the exceptions: rule, file and name. Each needs a reason."""
    allowed = set()
    for line in (ROOT / "tools/english_exceptions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            content, _, reason = line.partition("#")
            rule, file, name = content.split(maxsplit=2)
            if not reason.strip():
                raise SystemExit(f"tools/english_exceptions.txt: {content.strip()}: found no reason; add one after #")
            allowed.add((rule, file, name.strip()))
    if len(allowed) > MOST_EXCEPTIONS:
        raise SystemExit(
            f"tools/english_exceptions.txt: found {len(allowed)} exceptions, expected at most {MOST_EXCEPTIONS}"
        )
    return allowed


def run_all_rules() -> Iterator[LintFinding]:
    """Yield everything that breaks a rule, exceptions included."""
    for file, text in read_python_files(*CODE):
        tree = ast.parse(text)
        yield from find_vague_local_names(tree, file)
        yield from find_dependent_docstrings(tree, file)
        if file.startswith("src/"):
            yield from find_vague_public_names(tree, file)
    yield from find_duplicate_class_names(read_python_files("src"))
    for file, text in read_prose_files():
        yield from find_bad_phrases(file, text)
    yield from find_long_commit_subjects()


def main() -> int:
    """Print what breaks a rule and the count per rule. Return the exit code."""
    allowed = read_exceptions()
    every = list(run_all_rules())
    wrong = [f for f in every if (f.rule, f.file, f.name) not in allowed]
    used = {(f.rule, f.file, f.name) for f in every}
    for finding in wrong:
        print(finding)
    for rule, file, name in sorted(allowed - used):
        print(f"tools/english_exceptions.txt: {rule} {file} {name}: nothing needs this exception; remove it")
    counts = Counter(f.rule for f in wrong)
    print("english: " + (", ".join(f"{rule} {n}" for rule, n in counts.items()) or "no findings"))
    return 1 if wrong or allowed - used else 0


if __name__ == "__main__":
    sys.exit(main())
