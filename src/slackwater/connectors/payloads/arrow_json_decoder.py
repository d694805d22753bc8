"""Decode JSON in Spark's Python workers, and add the payloads to each Arrow batch of records as the column `_decoded`.

    a batch ──▶ could a record differ from Spark's rules? ──▶ Arrow's JSON reader ──▶ `_decoded`
                     │ yes                                           │ fails at a record
                     ▼                                               ▼
                NULL, then Spark                                NULL, then Spark; the batch continues after it

Arrow's reader is three times as fast as Spark's `from_json`, and stricter. It decodes a record only if `from_json`
would return the same values. Spark decodes all other records: malformed records, records with values that do not match
the schema, and records that the two readers might decode differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.connectors.spark_worker_socket import send_acknowledgments
from slackwater.core.column_names import CORRUPT

if TYPE_CHECKING:
    import pyarrow as pa

DECODED = "_decoded"  # the column with the payloads
_LONGEST = 16_384  # bytes; a longer record could be nested so deeply that Arrow's reader exhausts its stack
_SHORT = 1000  # bytes; a shorter record cannot reach a limit of Spark's parser, such as 1,000 levels or 1,000 digits
_NEAR_LIMIT = r"[0-9]{300}|(?:[\[{][^\[{]*){300}"
# Text that the two readers interpret differently: line breaks, which separate records for Arrow; halves of surrogate
# pairs; names of infinity and NaN; and `-0`, which is 0.0 for Spark and -0.0 for Arrow in a column of doubles.
_AMBIGUOUS = r"[\r\n]|\\u[dD]|[:,\[][ \t]*(?:[+-]?(?:NaN|Inf)|-0[^.eE0-9])"
_MOST_FAILURES = 20  # per batch; Spark then decodes the rest, because a failure costs as much as hundreds of records
_FAILED_ROW = re.compile(r"in row (\d+)$")


@dataclass(frozen=True)
class JsonDecoder:
    """Decoder for JSON records, in the form that is sent to Spark's workers.

    Args:
        type: The Arrow type of the payload, a struct.
        body: The column with the bytes.
    """

    type: pa.DataType
    body: str

    def decode(self, body: pa.Array) -> pa.Array:
        """Return the payloads as structs. NULL for each record that Spark must decode."""
        import pyarrow as pa
        import pyarrow.compute as pc

        records = _without_doubtful(body.cast(pa.binary()))
        if not records.null_count:
            return self._decode_valid(records)
        valid = records.is_valid()
        positions = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
        return self._decode_valid(records.drop_null()).take(pc.if_else(valid, positions, None))

    def _decode_valid(self, records: pa.Array) -> pa.Array:
        """Decode records, none of which is NULL. A record that Arrow cannot decode becomes NULL."""
        import pyarrow as pa

        pieces, failures = [pa.nulls(0, self.type)], 0
        while len(records):
            decoded, failed_row = self._read(records)
            if decoded is not None:
                pieces.append(decoded)
                break
            failures += 1
            before = None if failed_row is None or failures > _MOST_FAILURES else self._read(records[:failed_row])[0]
            if failed_row is None or before is None:
                pieces.append(pa.nulls(len(records), self.type))
                break
            pieces += [before, pa.nulls(1, self.type)]
            records = records[failed_row + 1 :]
        return pa.concat_arrays(pieces)

    def _read(self, records: pa.Array) -> tuple[pa.Array | None, int | None]:
        """Return the payloads and None or, on failure, None and the index of the failed record, if known."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.json as pj

        if not len(records):
            return pa.nulls(0, self.type), None
        lines = pa.ListArray.from_arrays(pa.array([0, len(records)], pa.int32()), records)
        text = pc.binary_join(lines, b"\n")[0].as_buffer()
        schema = pa.schema([field for field in self.type if field.name != CORRUPT])
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid as error:
            row = _FAILED_ROW.search(str(error))
            return None, None if row is None or int(row[1]) >= len(records) else int(row[1])
        if table.num_rows != len(records):  # a record contains two objects
            return None, None
        columns = {field.name: table.column(field.name).combine_chunks() for field in schema}
        not_corrupt = pa.nulls(len(records), pa.string())
        return pa.StructArray.from_arrays(
            [columns.get(field.name, not_corrupt) for field in self.type], fields=list(self.type)
        ), None


def _without_doubtful(records: pa.Array) -> pa.Array:
    """Replace with NULL each record that is not safe to decode with Arrow's reader.

    The remaining records begin with `{`, end with `}`, and contain no line break. If they are joined with line breaks,
    no object can span two records: a string cannot contain a line break, and `{` cannot follow a value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        records.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8, which Arrow's reader does not detect
        return pa.nulls(len(records), pa.binary())
    length = pc.binary_length(records)
    usable = pc.and_(pc.starts_with(records, b"{"), pc.ends_with(records, b"}"))
    usable = pc.and_not(pc.and_(usable, pc.less_equal(length, _LONGEST)), pc.match_substring_regex(records, _AMBIGUOUS))
    if (pc.max(length).as_py() or 0) > _SHORT:
        usable = pc.and_not(usable, pc.match_substring_regex(records, _NEAR_LIMIT))
    usable = pc.fill_null(usable, False)
    return records if usable.true_count == len(records) else pc.if_else(usable, records, None)


def decode_batches(decoder: JsonDecoder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of records with the payloads in the additional column `_decoded`."""
    import pyarrow as pa

    send_acknowledgments()
    for batch in batches:
        payloads = decoder.decode(batch.column(decoder.body))
        fields = pa.schema([*batch.schema, pa.field(DECODED, payloads.type)])
        yield pa.RecordBatch.from_arrays([*batch.columns, payloads], schema=fields)


def is_supported(kind: Any) -> bool:
    """Return whether Arrow's reader decodes all values of a Spark type as `from_json` does."""
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.StructType):
        return bool(kind.fields) and all(is_supported(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return is_supported(kind.elementType)
    return type(kind) in (T.StringType, T.BooleanType, T.IntegerType, T.LongType, T.DoubleType)


def nullable(kind: Any) -> Any:
    """Return a copy of a Spark type in which every value may be NULL, as in the result of `from_json`."""
    from pyspark.sql.types import ArrayType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    return ArrayType(nullable(kind.elementType)) if isinstance(kind, ArrayType) else kind


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type in which Spark expects values of a supported type."""
    import pyarrow as pa
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    scalars = {T.StringType: pa.string(), T.BooleanType: pa.bool_(), T.IntegerType: pa.int32()}
    scalars |= {T.LongType: pa.int64(), T.DoubleType: pa.float64()}
    return scalars[type(kind)]
