"""Convert a JSON Schema to the columns that it describes.

    {"properties": {"user": {"type": "string"}, "at": {"type": "string", "format": "date-time"}}}
        ─▶ user STRING, at TIMESTAMP

A property without a matching column type becomes a STRING that contains the JSON of its value. Examples are values of
several types, arrays or objects without a schema, and recursive types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.core.column_names import quote_identifier

TEXT = "STRING"
_PLAIN = {"string": TEXT, "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}


def schema_columns(text: str, others: Mapping[str, str]) -> str:
    """Return the columns that a JSON Schema describes, as DDL. Raises ValueError if it does not describe any.

    `others`: the referenced schemas, by the names used in `$ref`.
    """
    documents = {"": json.loads(text), **{name: json.loads(t) for name, t in others.items()}}
    columns = _Document(documents, "").properties(documents[""])
    if not columns:
        raise ValueError("it does not describe an object with properties, which become columns")
    return ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns.items())


@dataclass(frozen=True)
class _Document:
    """One of several schemas that refer to each other.

    Args:
        documents: All schemas as parsed JSON, by name. The main schema has the name "".
        name: The name of this schema.
        followed: The references that were followed to reach this schema. A repeated reference means recursion.
    """

    documents: Mapping[str, Any]
    name: str
    followed: frozenset[tuple[str, str]] = field(default=frozenset())

    def properties(self, schema: Any) -> dict[str, str]:
        """Return the column type of each property of an object schema."""
        document, schema = self._resolve_ref(schema)
        if not isinstance(schema, Mapping):
            return {}
        columns = {name: document.type_of(subschema) for name, subschema in (schema.get("properties") or {}).items()}
        for subschema in schema.get("allOf") or ():
            columns |= document.properties(subschema)
        return columns

    def type_of(self, schema: Any) -> str:
        """Return the column type for a schema."""
        document, schema = self._resolve_ref(schema)
        if not isinstance(schema, Mapping):
            return TEXT
        if (choices := schema.get("oneOf") or schema.get("anyOf")) is not None:
            non_null = [choice for choice in choices if choice != {"type": "null"}]
            return document.type_of(non_null[0]) if len(non_null) == 1 else TEXT
        kinds = schema.get("type")
        kinds = [k for k in ([kinds] if isinstance(kinds, str) else kinds or ()) if k != "null"]
        if len(kinds) > 1:
            return TEXT
        if kinds == ["array"]:
            items = schema.get("items")
            return f"ARRAY<{document.type_of(items)}>" if isinstance(items, Mapping) else TEXT
        if kinds == ["object"] or (not kinds and ("properties" in schema or "allOf" in schema)):
            if members := document.properties(schema):
                return (
                    "STRUCT<" + ", ".join(f"{quote_identifier(name)}: {kind}" for name, kind in members.items()) + ">"
                )
            values = schema.get("additionalProperties")
            return f"MAP<STRING, {document.type_of(values)}>" if isinstance(values, Mapping) and values else TEXT
        if kinds == ["string"]:
            return (
                "BINARY" if schema.get("contentEncoding") == "base64" else _FORMATS.get(schema.get("format", ""), TEXT)
            )
        return _PLAIN[kinds[0]] if kinds and kinds[0] in _PLAIN else TEXT

    def _resolve_ref(self, schema: Any) -> tuple[_Document, Any]:
        """Follow the `$ref` of a schema, if it has one. Return the document of the target, and the target.

        The target is None if the reference is recursive. Raises ValueError if the target does not exist.
        """
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return self, schema
        name, _, path = schema["$ref"].partition("#")
        place = (name or self.name, path)
        if place in self.followed:
            return self, None
        target = self.documents.get(place[0])
        for part in path.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        if target is None:
            raise ValueError(f"{json.dumps(schema['$ref'])} is not defined in it or in its references")
        return _Document(self.documents, place[0], self.followed | {place})._resolve_ref(target)
