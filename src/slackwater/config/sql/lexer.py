r"""Lexer for SQL, which splits text into words, strings, quoted names and signs as Spark does. It skips comments.

SELECT n, `a b` -- note          word SELECT · word n · sign , · name `a b`
DATE 'today'                     word DATE · text 'today'

sqlglot's tokenizer is not used. It reads GROUP BY as one token, splits 1L and 'it''s' into several tokens, and ignores a
`\` that continues a comment on the next line. Importing it would also add 0.1 s to each read of a schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_SPACE = re.compile(r"\s+|--(?:\\\n|[^\r\n])*")
_TOKEN = re.compile(
    r"""(?P<text>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")"""
    r"""|(?P<name>`(?:[^`]|``)*`)|(?P<hint>/\*\+|\*/)|(?P<word>\w+)|(?P<sign>.)""",
    re.DOTALL,
)
_TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TIME")
_CLOCK = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)


class UnreadableError(Exception):
    """The lexer cannot split the SQL. `open_quote`: whether the cause is an unclosed quote, an error in Spark too."""

    def __init__(self, line: str, open_quote: bool = False) -> None:
        super().__init__(line)
        self.open_quote = open_quote


@dataclass(frozen=True)
class Token:
    """Token of a SQL string. `kind`: word, text, name, sign or hint. `start`, `end`: its position in characters."""

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Return whether the token is one of these words (in upper case), ignoring case. Quoted names are not words."""
        return self.kind == "word" and self.text.upper() in words


def tokenize(sql: str) -> list[Token]:
    """Return the tokens of a SQL string. Raises UnreadableError if it cannot be split."""
    parts, position = list[Token](), 0
    while position < len(sql):
        space = _SPACE.match(sql, position)
        if space:
            position = space.end()
        elif sql.startswith("/*", position) and not sql.startswith("/*+", position):
            position = _comment(sql, position)
        else:
            match = _TOKEN.match(sql, position)
            assert match is not None
            kind = str(match.lastgroup)
            if kind == "sign" and match[0] in "'\"`":
                raise UnreadableError("has an unclosed quote; close it", open_quote=True)
            if kind == "sign" and match[0] == "$":
                raise UnreadableError("has a dollar-quoted string")
            parts.append(Token(kind, match[0], position, match.end()))
            position = match.end()
    return parts


def strip_semicolon(sql: str) -> str:
    """Remove `;` and comments from the end of a query. SQL that the lexer cannot split is returned unchanged."""
    try:
        parts = tokenize(sql)
    except UnreadableError:
        return sql
    while parts and parts[-1].text == ";":
        parts.pop()
    return sql[: parts[-1].end] if parts else ""


def find_clock_literals(sql: str) -> list[str]:
    """Return the literals that depend on the clock, such as `DATE 'today'`; none if the lexer cannot split the SQL."""
    try:
        parts = tokenize(sql)
    except UnreadableError:
        return []
    times = ((a.text.upper(), b) for a, b in pairwise(parts) if a.is_word(*_TIMES) and b.kind == "text")
    return [f"{word} '{value.strip()}'" for word, text in times if depends_on_clock(value := _value(text.text))]


def depends_on_clock(text: str) -> bool:
    """Return whether a date or timestamp literal depends on the clock: "now", "today" and similar."""
    return bool(_CLOCK.match(text))


def _value(text: str) -> str:
    """Return the value of a string literal, without quotes and escape sequences."""
    if text[0] in "rR":
        return text[2:-1]

    def escaped(match: re.Match[str]) -> str:
        four, eight, octal, other = match.groups()
        number = int(four or eight or "0", 16) or (int(octal, 8) if octal else 0)
        return chr(number) if number and number <= 0x10FFFF else {"n": "\n", "t": "\t"}.get(other or "", other or "")

    return _ESCAPE.sub(escaped, text[1:-1])


def _comment(sql: str, position: int) -> int:
    """Return the position after a `/* */` comment that begins at `position`. Comments may be nested."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(sql, position):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    raise UnreadableError("has an unclosed comment; close it")
