"""The messages in the sources: every error that is raised, every warning that is logged, every mistake of a config."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from docgen.error_explanations import WARNINGS, ErrorExplanation
from slackwater import errors
from slackwater.config.config_key import declare_key
from slackwater.config.error_text import describe_value_mismatch
from slackwater.core.humanize import mismatch

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "slackwater"
_INTERNAL = (errors.NeedsSparkError,)  # never shown to users
CLASSES = {
    n: c
    for n, c in vars(errors).items()
    if inspect.isclass(c) and issubclass(c, errors.SlackwaterError) and c not in _INTERNAL
}
WARNING = "warning"  # used instead of a class, for log lines
VALUE = "…"  # stands for what the message is about
_MISMATCHES = (mismatch.__name__, describe_value_mismatch.__name__)  # their calls stand for the text that they format
_SAYS = re.compile(r"; |expected|found |missing|is not |cannot|must ")  # how mistakes of a config are told


@dataclass(frozen=True)
class SourceMessage:
    """One place in the sources.

    `kind`: an error class, or `WARNING`. `text`: has `…` where values go; "" if it is all values. `topic`: that of an error.
    """

    file: str
    line: int
    kind: str
    text: str
    topic: errors.Topic | None

    def belongs_to(self, topic: ErrorExplanation) -> bool:
        if self.kind in CLASSES:
            return self.topic == topic.topic
        return topic == next(t for t in WARNINGS if not t.quotes or any(quote in self.text for quote in t.quotes))


def extract_expression_text(node: ast.expr) -> str:
    """The text of an expression, with `…` for every value in it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return re.sub(f"{VALUE}+", VALUE, "".join(map(extract_expression_text, node.values)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return re.sub(f"{VALUE}+", VALUE, extract_expression_text(node.left) + extract_expression_text(node.right))
    if isinstance(node, ast.FormattedValue):
        return extract_expression_text(node.value) if is_mismatch_call(node.value) else VALUE
    if is_mismatch_call(node):
        actual, expected = node.args
        actual_text = (
            VALUE if _called_name(node) == describe_value_mismatch.__name__ else extract_expression_text(actual)
        )
        return re.sub(f"{VALUE}+", VALUE, mismatch(actual_text, extract_expression_text(expected)))
    if isinstance(node, ast.List) and len(node.elts) == 1:
        return extract_expression_text(node.elts[0])
    return VALUE


def is_mismatch_call(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether a node calls a function that formats "found …, expected …"."""
    return isinstance(node, ast.Call) and _called_name(node) in _MISMATCHES


def collect_messages() -> list[SourceMessage]:
    """All errors and warnings, in the order of the files. Mistakes of a config are told apart: see `collect_config_mistakes`."""
    all_messages = list[SourceMessage]()
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (kind := _message_kind(node)) is not None:
                said = node.args[-1 if _called_name(node) in _NOTICES else 0] if node.args else None
                text = "" if said is None else re.sub(r"%[sdg]", VALUE, extract_expression_text(said))
                says = text.strip(VALUE + " :.;")  # "" where it passes on what others say
                file = str(path.relative_to(SOURCES))
                all_messages.append(
                    SourceMessage(file, node.lineno, kind, text if says else "", _error_topic(node, kind))
                )
    return all_messages


def _error_topic(call: ast.Call, kind: str) -> errors.Topic | None:
    """Return the topic that an error is raised with: that of the call, or else that of its class."""
    if kind not in CLASSES:
        return None
    *_, last = [None, *call.args]
    is_named = isinstance(last, ast.Attribute) and getattr(last.value, "id", "") == errors.Topic.__name__
    return errors.Topic[last.attr] if isinstance(last, ast.Attribute) and is_named else CLASSES[kind].topic


_NOTICES = ("notice", "_notice")


def _called_name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _message_kind(call: ast.Call) -> str | None:
    name, first = _called_name(call), call.args[0] if call.args else None
    if name in CLASSES:
        return name
    if name in _NOTICES and isinstance(first, ast.Constant) and first.value == "warning":
        return WARNING
    of_log = isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "log"
    return WARNING if name == "warning" and of_log else None


NOT_ABOUT_KEYS = ("config_warnings", "connector_description", "json_schema", "state_comparison")  # modules of `config`


def collect_config_mistakes() -> dict[str, list[str]]:
    """What the modules of `config` say of keys, by module or folder: texts with `…` for values."""
    texts_by_name = dict[str, list[str]]()
    for path in sorted((SOURCES / "config").rglob("*.py")):
        if path.stem in NOT_ABOUT_KEYS:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        functions = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name not in _MISMATCHES]
        texts = dict.fromkeys(
            t.strip(" :") for f in functions for t in _string_texts(f) if len(t) > 14 and _SAYS.search(t)
        )
        calls = [n for n in nodes if isinstance(n, ast.Call) and _called_name(n) == declare_key.__name__]
        hints = [extract_expression_text(k.value) for n in calls for k in n.keywords if k.arg == "required"]
        hints += [
            f"{VALUE} {text}"
            for n in calls
            for k in n.keywords
            if k.arg == "kinds"
            for text in _missing_key_sentences(k.value)
        ]
        texts |= dict.fromkeys(f"missing; {hint}" for hint in hints)
        if texts:
            name = path.stem if path.parent.name == "config" else path.parent.name
            texts_by_name.setdefault(name, []).extend(texts)
    return texts_by_name


def _missing_key_sentences(kinds: ast.expr) -> list[str]:
    """The sentences about missing keys in `kinds`: the values of a table, or the second argument of `dict.fromkeys`."""
    nodes = kinds.values if isinstance(kinds, ast.Dict) else kinds.args[1:] if isinstance(kinds, ast.Call) else []
    return [text for node in nodes if (text := extract_expression_text(node))]


def _string_texts(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # a docstring
        if (
            isinstance(child, ast.JoinedStr | ast.BinOp)
            or is_mismatch_call(child)
            or (isinstance(child, ast.Constant) and isinstance(child.value, str))
        ):
            text = extract_expression_text(child)
            if "\n" not in text:
                yield text
            continue
        yield from _string_texts(child)
