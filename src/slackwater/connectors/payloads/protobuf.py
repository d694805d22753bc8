"""Decode Protobuf records in Python workers, with a schema file or with every version of a subject in a registry.

event.proto ──protoc──▶ files, imports first ──▶ a message ──▶ columns, as DDL
versions in a registry ──▶ compatible with the newest version? ──▶ frames: 00, schema id, message indexes
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.source import Source
from slackwater.connectors import spark_connect_support
from slackwater.connectors.payloads.base import Payload, RawRecords
from slackwater.connectors.payloads.protobuf_decoder import ProtobufDecoder, decode_batches
from slackwater.core.column_names import quote_identifier
from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# Files that Confluent's registry provides, so that schemas can import them without a reference: field metadata,
# decimals and variants
META = """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
DECIMAL = """
syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""
VARIANT = """
syntax = "proto3";
package confluent.type;
message Variant { bytes metadata = 1; bytes value = 2; }
"""
BUILTIN_IMPORTS = {
    "confluent/meta.proto": META,
    "confluent/type/decimal.proto": DECIMAL,
    "confluent/type/variant.proto": VARIANT,
}


_SECONDS = 60.0
_MAIN = "schema.slackwater.proto"  # the file name for a schema from a registry
_PLAIN = {
    "int32": "INT", "int64": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "bool": "BOOLEAN",
    "string": "STRING", "binary": "BINARY",
    "date32[day]": "DATE", "timestamp[us, tz=UTC]": "TIMESTAMP", "duration[us]": "INTERVAL DAY TO SECOND",
    "decimal128(20, 0)": "DECIMAL(20, 0)",
}  # fmt: skip
# type numbers in descriptors, and the types that values of each type can be read as without changing their meaning
_MESSAGE, _GROUP, _REPEATED = 11, 10, 3
_READ_AS: Mapping[int, Sequence[int]] = {5: [3], 13: [4], 17: [18], 8: [5, 3, 13, 4], 14: [5, 3], 9: [12], 12: [9]}


@dataclass(frozen=True)
class ProtoFiles:
    """A serialized FileDescriptorSet: a file, preceded by all files that it imports.

    Methods raise ValueError if the file is not usable.
    """

    data: bytes

    def __post_init__(self) -> None:
        for file in self._set.file:
            if file.syntax not in ("", "proto2", "proto3"):
                raise ValueError(
                    f'"{file.name}" is written in an edition of Protobuf; expected syntax "proto2" or "proto3"'
                )
        if not self._set.file:
            raise ValueError("it contains no file")

    @cached_property
    def _set(self) -> Any:
        from google.protobuf import descriptor_pb2

        return descriptor_pb2.FileDescriptorSet.FromString(self.data)

    @cached_property
    def messages(self) -> Mapping[str, Any]:
        """The descriptors of all messages, by full name."""
        return {name: message for file in self._set.file for name, _, message in _messages_in(file)}

    @cached_property
    def message_indexes(self) -> Mapping[str, tuple[int, ...]]:
        """The message indexes in registry frames, by full name, for messages that the file itself defines.

        A message has one index per nesting level.
        """
        return {name: place for name, place, _ in _messages_in(self._set.file[-1])}

    def full_name(self, name: str | None) -> str:
        """Check that a message exists and return its full name. None stands for the first message in the file."""
        if name is None:
            if not self.message_indexes:
                raise ValueError("it contains no message")
            return next(iter(self.message_indexes))
        if name not in self.messages:
            raise ValueError(f'there is no message "{name}" in it{suggest_or_list_words(name, self.messages)}')
        return name

    def check(self, name: str, within: Sequence[str] = ()) -> None:
        """Raise ValueError if a message contains itself, or has two fields whose names are equal in Spark.

        `within`: the names of the enclosing messages.
        """
        if name in within:
            raise ValueError(
                f'message "{name}" contains itself ({" > ".join([*within, name])}); no column can hold that'
            )
        field_names: dict[str, str] = {}
        for member in self.messages[name].field:
            if (other := field_names.setdefault(member.json_name.casefold(), member.name)) != member.name:
                raise ValueError(
                    f'message "{name}" has fields "{other}" and "{member.name}", which Spark treats as the same name'
                )
            if member.type in (_MESSAGE, _GROUP):
                self.check(member.type_name.lstrip("."), [*within, name])

    def own_message_name(self, name: str | None) -> str:
        """Check that the file itself defines a message, as registry frames require, and return its full name."""
        full_name = self.full_name(name)
        if full_name not in self.message_indexes:
            raise ValueError(
                f'message "{full_name}" is defined in an imported file, but records can only contain messages that the '
                "file itself defines"
            )
        return full_name

    def decoder(self, name: str, prefixes: Sequence[bytes] | None, body: str) -> ProtobufDecoder:
        self.check(name)
        return ProtobufDecoder(self.data, name, None if prefixes is None else tuple(prefixes), body)

    def is_readable_by(self, newest: ProtoFiles, name: str) -> bool:
        """Return whether `name` messages written with these files keep their meaning when `newest` decodes them."""
        return name in self.message_indexes and _is_compatible(self, name, newest, name, set())


def _messages_in(file: Any) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    def below(
        messages: Any, before: str, parent_indexes: tuple[int, ...]
    ) -> Iterator[tuple[str, tuple[int, ...], Any]]:
        number = 0
        for message in messages:
            is_map = message.options.map_entry  # generated for a map field; writers do not count it
            name, indexes = before + message.name, (*parent_indexes, -1 if is_map else number)
            number += not is_map
            yield name, indexes, message
            yield from below(message.nested_type, f"{name}.", indexes)

    yield from below(file.message_type, f"{file.package}." if file.package else "", ())


def _is_compatible(old: ProtoFiles, was: str, new: ProtoFiles, name: str, compared: set[tuple[str, str]]) -> bool:
    """Return whether every field that two versions of a message share keeps its meaning.

    Args:
        old: The files of the earlier version.
        was: The name of the message in the earlier version.
        new: The files of the later version.
        name: The name of the message in the later version.
        compared: Pairs of names that were already compared. This call adds to them.
    """
    if (was, name) in compared:
        return True
    compared.add((was, name))
    fields = {field.number: field for field in new.messages[name].field}
    for before in old.messages[was].field:
        after = fields.get(before.number)
        if after is None:
            continue
        if before.label == _REPEATED and after.label != _REPEATED:
            return False
        if before.type != after.type and after.type not in _READ_AS.get(before.type, ()):
            return False
        both = (before.type_name.lstrip("."), after.type_name.lstrip("."))
        if after.type in (_MESSAGE, _GROUP) and not _is_compatible(old, both[0], new, both[1], compared):
            return False
    return True


# -- loading and compiling ---------------------------------------------------------------------------------------------


def from_file(path: Path) -> ProtoFiles:
    """Load a descriptor set, or a .proto file with its imports from the same folder.

    Raises OSError if a file cannot be read, and ValueError if it is not valid.
    """
    if path.suffix == ".proto":
        path.read_bytes()  # raises a clear error if the file does not exist
        return ProtoFiles(_compile(path.parent, path.name))
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    data, pool = path.read_bytes(), descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise ValueError(
            f"{' '.join(str(error).split())}; expected a .proto file, or what protoc --include_imports "
            "--descriptor_set_out writes"
        ) from None
    return ProtoFiles(data)


def from_texts(text: str, others: Mapping[str, str]) -> ProtoFiles:
    """Compile a schema from a registry. Raises ValueError if it is not valid.

    `others`: the text of each referenced schema, by the name under which the schema imports it.
    """
    with tempfile.TemporaryDirectory(prefix="slackwater-proto-") as folder:
        for name, content in {**BUILTIN_IMPORTS, **others, _MAIN: text}.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f'it refers to "{name}", but no file has this name')
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(content)
        return ProtoFiles(_compile(Path(folder), _MAIN))


def _compile(folder: Path, name: str) -> bytes:
    """Compile a file and its imports into a FileDescriptorSet. Imports are in `folder` or are Google's common types."""
    common = find_spec("google.type")
    roots = [str(Path(p).parent.parent) for p in (common.submodule_search_locations or ())] if common else []
    with tempfile.TemporaryDirectory(prefix="slackwater-proto-") as out:
        path = Path(out) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{root}" for root in (".", *roots))]
        command += ["--include_imports", f"--descriptor_set_out={path}", name]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=folder)
        if ran.returncode:
            lines = [line for line in ran.stderr.splitlines() if "warning:" not in line]
            raise ValueError(lines[0].removeprefix(f"{_MAIN}:") if lines else "protoc rejects it")
        return path.read_bytes()


# -- columns and frames ------------------------------------------------------------------------------------------------


def message_columns(decoder: ProtobufDecoder) -> str:
    """Return the columns of a message as DDL."""
    return ", ".join(f"{quote_identifier(field.name)} {_ddl(field.type)}" for field in decoder.type)


def _ddl(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return "STRUCT<" + ", ".join(f"{quote_identifier(field.name)}: {_ddl(field.type)}" for field in kind) + ">"
    if pa.types.is_map(kind):
        return f"MAP<{_ddl(kind.key_type)}, {_ddl(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_ddl(kind.value_type)}>"
    return _PLAIN[str(kind)]


def record_prefixes(number: int, place: Sequence[int]) -> list[bytes]:
    """Return the byte prefixes that may precede a message: a zero byte, the schema id, and the message indexes.

    The indexes are zigzag varints, preceded by their count. For the first message, the count and the indexes may be
    abbreviated to a single zero byte. `number`: the schema id. `place`: the message indexes.
    """
    frame = b"\0" + number.to_bytes(4, "big")
    prefixes = [frame + b"".join(_varint(n << 1) for n in (len(place), *place))]
    return [frame + b"\0", *prefixes] if tuple(place) == (0,) else prefixes


def _varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded, number = encoded + bytes([number & 0x7F | 0x80]), number >> 7
    return encoded + bytes([number])


@dataclass(frozen=True)
class ProtobufPayload(Payload):
    """Decoder for Protobuf records. `decoder`: decodes the records in Python workers."""

    decoder: ProtobufDecoder = field(kw_only=True)

    @classmethod
    def from_records(cls, records: RawRecords) -> ProtobufPayload:
        path = records.spec.protobuf_schema_file
        decoder, ddl = _decoder_from_registry(records) if path is None else _decoder_from_file(records, Path(path))
        return cls(spark_connect_support.parse_ddl_schema(records.session, ddl), records.body, decoder=decoder)

    def runs_in_workers(self, count: int | None) -> bool:
        return True

    def with_payload(self, records: DataFrame, count: int | None) -> DataFrame:
        from pyspark.sql.types import StructField, StructType

        schema = StructType([*records.schema.fields, StructField("_p", self.schema)])
        return records.mapInArrow(partial(decode_batches, self.decoder), schema)


def _decoder_from_file(records: RawRecords, path: Path) -> tuple[ProtobufDecoder, str]:
    """Return the decoder for records without a registry frame, and their columns as DDL."""
    spec = records.spec
    with _as_start_error(spec, f'protobuf_schema_file "{path}"'):
        files = from_file(path)
        decoder = files.decoder(files.full_name(spec.protobuf_message), None, records.body)
        return decoder, message_columns(decoder)


def _decoder_from_registry(records: RawRecords) -> tuple[ProtobufDecoder, str]:
    """Return the decoder for records of all compatible schema versions, and their columns as DDL.

    It decodes all records with the newest version, because Protobuf identifies fields by number.
    """
    spec, versions = records.spec, dict[int, ProtoFiles]()
    for version in records.versions("protobuf_schema_file"):
        with _as_start_error(spec, f"schema {version.id} of the registry"):
            versions[version.id] = from_texts(version.text, version.references)
    latest, newest = list(versions.items())[-1]
    with _as_start_error(spec, f"schema {latest} of the registry"):
        name = newest.own_message_name(spec.protobuf_message)
        prefixes = [
            prefix
            for number, files in versions.items()
            if files.is_readable_by(newest, name)
            for prefix in record_prefixes(number, files.message_indexes[name])
        ]
        decoder = newest.decoder(name, prefixes, records.body)
        return decoder, message_columns(decoder)


@contextmanager
def _as_start_error(spec: Source, schema_name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise StartError(
            f'source "{spec.name}": {schema_name} cannot be used as a Protobuf schema ({error}); correct it',
            Topic.SOURCE_SCHEMA,
        ) from None
