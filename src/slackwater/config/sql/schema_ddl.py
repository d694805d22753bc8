"""Parser for schemas in Spark DDL: `name TYPE [NOT NULL] [COMMENT '…'], …`. It accepts the same schemas as Spark.

sqlglot's Spark dialect is not used. It accepts types of other systems (`text`, `json`, `int(11)`, `decimal(50,2)`), reads
TIMESTAMP WITHOUT TIME ZONE as TIMESTAMP, and rejects VOID and names such as `select` (see ADR 46).

Types are spelled as Spark prints them (`decimal(10,2)`, `array<int>`), so that they equal the types at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slackwater.config.error_text import format_value, suggest_word
from slackwater.config.sql.lexer import SqlLexError, Token, tokenize
from slackwater.core.humanize import mismatch

_SIMPLE = {
    **{name: name for name in ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string")},
    **{name: name for name in ("binary", "date", "timestamp", "timestamp_ntz", "variant", "void")},
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_OTHERS = {  # type of another system -> Spark type
    **dict.fromkeys(("text", "str", "varchar2", "nvarchar", "uuid", "json", "jsonb"), "STRING"),
    "bool": "BOOLEAN",
    "datetime": "TIMESTAMP",
    "timestamptz": "TIMESTAMP",
    "number": "DECIMAL(38,0)",
    "int8": "BIGINT",
    "int64": "BIGINT",
    "int4": "INT",
    "int32": "INT",
    "int2": "SMALLINT",
    "int16": "SMALLINT",
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "bytes": "BINARY",
    "bytea": "BINARY",
    "list": "ARRAY<…>",
}
_PARAMETERS = ("decimal", "dec", "numeric", "char", "character", "varchar", "time", "interval", "geometry", "geography")
_NAMES = (*_SIMPLE, *_PARAMETERS, "array", "map", "struct")
_UNITS = ("year", "years", "month", "months", "day", "days", "hour", "hours", "minute", "minutes", "second", "seconds")
_END = Token("end", "", 0, 0)


class DdlError(Exception):
    """A schema is invalid. The message describes the problem, as in `"STRNG" is not a Spark type`."""


def parse_ddl_columns(ddl: str) -> dict[str, str]:
    """Return the columns of a schema and their types, in order. Raises DdlError if the schema is invalid."""
    reader = _create_parser(ddl)
    if reader.at_end():
        return {}
    columns = dict(reader.members(None))
    if not reader.at_end():
        raise reader.unexpected_token()
    return columns


def parse_type(text: str) -> str | None:
    """Return a type as Spark prints it: `INTEGER` -> `int`; None if the text is not a type."""
    try:
        reader = _create_parser(text)
        type_name = reader.type("")
        return type_name if reader.at_end() else None
    except DdlError:
        return None


def _create_parser(ddl: str) -> _DdlParser:
    try:
        return _DdlParser(tokenize(ddl))
    except SqlLexError as error:
        raise DdlError(str(error)) from None


_FORM = 'expected "name TYPE, name TYPE, …"'


@dataclass
class _DdlParser:
    """Recursive-descent parser over the tokens of a schema."""

    tokens: list[Token]
    position: int = 0

    def at_end(self) -> bool:
        return self.position >= len(self.tokens)

    def peek(self, further: int = 0) -> Token:
        index = self.position + further
        return self.tokens[index] if index < len(self.tokens) else _END

    def take_words(self, *words: str) -> bool:
        """Consume the next tokens if they are these words (in upper case). Return whether they were consumed."""
        are_next = all(self.peek(i).is_word(word) for i, word in enumerate(words))
        self.position += len(words) if are_next else 0
        return are_next

    def unexpected_token(self) -> DdlError:
        """Return an error about the next token."""
        return DdlError(f"found {self.found_text()} {self.location_text()}, {_FORM}")

    def found_text(self) -> str:
        return "the end of the schema" if self.at_end() else f'"{self.peek().text}"'

    def location_text(self) -> str:
        return f'after "{self.tokens[self.position - 1].text}"' if self.position else "at the beginning"

    def take(self, *texts: str) -> bool:
        """Consume the next token if it is one of `texts` (in lower case). Return whether it was consumed."""
        token = self.peek()
        if token.kind in ("word", "sign") and token.text.lower() in texts:
            self.position += 1
            return True
        return False

    def expect(self, mark: str, construct: str) -> None:
        if not self.take(mark):
            raise DdlError(f'{construct} needs "{mark}" {self.location_text()}, found {self.found_text()}')

    def number(self, construct: str, most: int) -> int:
        token = self.peek()
        if not token.text.isdecimal() or int(token.text[:6]) > most:
            raise DdlError(f"{construct}: " + mismatch(self.found_text(), f"a whole number of at most {most}"))
        self.position += 1
        return int(token.text)

    def members(self, closing: str | None) -> list[tuple[str, str]]:
        """Parse schema columns or struct fields. `closing`: the token after them; None for a schema."""
        columns: list[tuple[str, str]] = []
        while True:
            name = self.name()
            self.take(":")
            type_ = self.type(name)
            self.take_words("NOT", "NULL")
            if self.peek().is_word("COMMENT") and self.peek(1).kind == "text":
                self.position += 2
            columns.append((name, type_))
            if not self.take(","):
                return columns
            if self.at_end() and closing is None:
                raise DdlError(f'ends with ","; {_FORM}')

    def name(self) -> str:
        token = self.peek()
        if token.kind not in ("word", "name") or token.text.isdecimal():
            raise self.unexpected_token()
        if not token.text.isascii() and token.kind == "word":
            raise DdlError(f'"{token.text}" has characters that Spark accepts only in backticks; write `{token.text}`')
        self.position += 1
        if self.peek().kind == "sign" and self.peek().text not in "<>(),:":
            odd = self.peek().text
            raise DdlError(
                f'"{odd}" after "{token.text}" is not allowed in a name; quote the name with backticks, as in `a{odd}b`'
            )
        return token.text if token.kind == "word" else token.text[1:-1].replace("``", "`")

    def type(self, column: str) -> str:
        token = self.peek()
        construct = f'type "{token.text}" of "{column}"' if column else f'type "{token.text}"'
        if token.kind != "word":
            subject = f"column {format_value(column)} has" if column else f"{self.found_text()} is"
            raise DdlError(f"{subject} no type; {_FORM}")
        self.position += 1
        word = token.text.lower()
        if word in _SIMPLE:
            if word == "timestamp" and self.take_words("WITHOUT", "TIME", "ZONE"):
                return "timestamp_ntz"
            if self.peek().text == "(":
                raise DdlError(f"{construct} does not have a length; remove the parentheses")
            if word == "string" and self.peek().is_word("COLLATE"):
                self.position += 2
                return "string collated"
            return _SIMPLE[word]
        if word in ("array", "map", "struct"):
            return self._nested(word, construct)
        if word in _PARAMETERS:
            return self._with_parameters(word, construct)
        meant = _OTHERS.get(word)
        hint = f'; did you mean "{meant}"?' if meant else suggest_word(token.text.upper(), [n.upper() for n in _NAMES])
        raise DdlError(f"{construct} is not a Spark type{hint}")

    def _nested(self, word: str, construct: str) -> str:
        self.expect("<", construct)
        if word == "struct":
            if self.take(">"):
                return "struct<>"
            inner = ",".join(f"{name}:{type_}" for name, type_ in self.members(">"))
        elif word == "array":
            inner = self.type("")
        else:
            key = self.type("")
            self.expect(",", construct)
            inner = f"{key},{self.type('')}"
        self.expect(">", construct)
        return f"{word}<{inner}>"

    def _with_parameters(self, word: str, construct: str) -> str:
        if word in ("decimal", "dec", "numeric"):
            precision, scale = 10, 0
            if self.take("("):
                precision = self.number(construct, 38)
                scale = self.number(construct, precision) if self.take(",") else 0
                self.expect(")", construct)
            return f"decimal({precision},{scale})"
        if word == "interval":
            if self.take(*_UNITS) and self.take("to"):
                self.take(*_UNITS)
            return "interval"
        if word == "time":
            precision = 6
            if self.take("("):
                precision = self.number(construct, 6)
                self.expect(")", construct)
            self.take_words("WITHOUT", "TIME", "ZONE")
            return f"time({precision})"
        self.expect("(", construct)
        inner = self.peek().text  # a length, or the reference system of a geometry
        self.position += 1
        self.expect(")", construct)
        return f"{'char' if word == 'character' else word}({inner})"


INTEGERS = ("tinyint", "smallint", "int", "bigint")
NUMBERS = (*INTEGERS, "float", "double", "decimal")
SCALARS = (*NUMBERS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
NO_KEYS = ("array", "map", "struct", "variant", "interval", "void")  # types that are not scalars


def strip_type_parameters(type_: str) -> str:
    """Return a type without parameters: `decimal(10,2)` -> `decimal`."""
    return type_.partition("(")[0].partition("<")[0]


def find_event_time_type_problems(type_: str, unit: str | None) -> Iterator[tuple[str, str]]:
    """Yield a problem as (config key, message) if a column of this type cannot be the event time.

    `unit`: the value of `event_time_unit`.
    """
    if type_ in INTEGERS:
        if unit is None:
            yield "event_time_unit", f'has type {type_}; set event_time_unit to "s", "ms", "us" or "ns"'
    elif type_ not in ("timestamp", "timestamp_ntz", "date", "string"):
        yield "event_time_column", f"has type {type_}, expected a timestamp, a date, an ISO-8601 string or an integer"


__all__ = ["DdlError", "parse_ddl_columns", "parse_type"]
