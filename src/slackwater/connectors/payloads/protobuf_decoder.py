"""Decode Protobuf in Spark's Python workers, and add the payloads to each Arrow batch of records as the column `_p`.

a record's bytes ──▶ known prefix? ──▶ the message ──▶ ptars, a batch at a time ──▶ Spark types ──▶ `_p`
                          │ no                            │ fails: each half of the batch separately,
                          ▼                               ▼        down to the record that cannot be decoded
                         NULL                            NULL
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from slackwater.connectors.spark_worker_socket import send_acknowledgments

if TYPE_CHECKING:
    import pyarrow as pa

_END = 2**31 - 1  # beyond the end of any value


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decoder for one message type, in the form that is sent to Spark's workers.

    Args:
        files: A serialized FileDescriptorSet.
        message: The full name of the message.
        prefixes: The byte prefixes that may precede a message: a frame with a schema id and the message indexes. None
            if messages have no prefix.
        body: The column with the bytes.
    """

    files: bytes
    message: str
    prefixes: tuple[bytes, ...] | None
    body: str

    def decode(self, body: pa.Array) -> pa.Array:
        """Return the payloads as structs with Spark's types. NULL if a record is NULL or cannot be decoded."""
        import pyarrow as pa

        messages = self._messages(body.cast(pa.binary()))
        pieces = list(_decode_pieces(message_decoder(self.files, self.message), messages, self.type))
        return pa.concat_arrays(pieces) if pieces else pa.array([], self.type)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type that Spark expects for the payload. Raises ValueError if the message has no fields."""
        import pyarrow as pa

        spark_type = as_spark(pa.struct(list(message_decoder(self.files, self.message).schema())))
        if spark_type is None:
            raise ValueError(f'message "{self.message}" has no fields, which become columns')
        return spark_type

    def _messages(self, body: pa.Array) -> pa.Array:
        """Return the bytes after the prefix of each record. NULL if the prefix is unknown."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.prefixes is None:
            return body
        messages = pa.nulls(len(body), pa.binary())
        for length in sorted({len(prefix) for prefix in self.prefixes}):
            prefixes = pa.array([prefix for prefix in self.prefixes if len(prefix) == length], pa.binary())
            matches = pc.is_in(pc.binary_slice(body, 0, length), value_set=prefixes)
            messages = pc.if_else(matches, pc.binary_slice(body, length, _END), messages)
        return messages


def decode_batches(decoder: ProtobufDecoder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of records with the payloads in the additional column `_p`."""
    import pyarrow as pa

    send_acknowledgments()
    for batch in batches:
        payloads = decoder.decode(batch.column(decoder.body))
        fields = pa.schema([*batch.schema, pa.field("_p", payloads.type)])
        yield pa.RecordBatch.from_arrays([*batch.columns, payloads], schema=fields)


def _decode_pieces(decoder: Any, messages: pa.Array, kind: pa.DataType) -> Iterator[pa.Array]:
    """Yield the decoded messages as struct arrays, in order. If decoding fails, retry with each half of them."""
    import pyarrow as pa

    if messages.null_count == len(messages):
        yield pa.nulls(len(messages), kind)
        return
    try:
        batch = decoder.array_to_record_batch(messages)
        columns = [batch.column(field.name).cast(field.type) for field in kind]
    except BaseException as error:
        if not _is_decoder_error(error):
            raise
        if len(messages) == 1:
            yield pa.nulls(1, kind)
            return
        half = len(messages) // 2
        yield from _decode_pieces(decoder, messages[:half], kind)
        yield from _decode_pieces(decoder, messages[half:], kind)
        return
    yield pa.StructArray.from_arrays(columns, fields=list(kind), mask=messages.is_null())


def _is_decoder_error(error: BaseException) -> bool:
    """Return whether decoding a record can raise this error. This includes Rust panics, which are not `Exception`s."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@lru_cache(maxsize=16)
def message_decoder(files: bytes, message: str) -> Any:
    """Return the ptars handler that decodes messages of a type to Arrow. It is cached for later batches and tasks.

    `files`: a serialized FileDescriptorSet. `message`: the full name of the message type.
    """
    try:
        import ptars
        from google.protobuf import descriptor_pb2, descriptor_pool
    except ImportError as error:  # at startup, packages are checked only on the local machine
        raise ModuleNotFoundError(
            f"{error}; install it for Spark's workers: pip install 'slackwater[protobuf]'"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    descriptor = pool.FindMessageTypeByName(message)
    nullable = dict.fromkeys(("list_nullable", "map_nullable", "list_value_nullable", "map_value_nullable"), True)
    settings: Any = {
        "timestamp_unit": "us",
        "time_unit": "us",
        "duration_unit": "us",
        "enum_repr": "string",
        **nullable,
    }
    return ptars.HandlerPool([descriptor.file], config=ptars.PtarsConfig(**settings)).get_for_message(descriptor)


def as_spark(kind: pa.DataType) -> pa.DataType | None:
    """Convert the Arrow type of a decoded value to the type that Spark uses.

    Return None for a message without fields, which Spark does not support.
    """
    import pyarrow as pa

    t = pa.types
    if t.is_struct(kind):
        members = [(field.name, member) for field in kind if (member := as_spark(field.type)) is not None]
        return pa.struct(members) if members else None
    if t.is_map(kind):
        value = as_spark(kind.item_type)
        key = as_spark(kind.key_type)
        return None if value is None or key is None else pa.map_(key, value)
    if t.is_list(kind):
        element = as_spark(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if t.is_uint64(kind):
        return pa.decimal128(20, 0)
    if t.is_uint32(kind):
        return pa.int64()
    return pa.string() if t.is_time(kind) else kind
