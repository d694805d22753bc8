"""Convert the columns of an Iceberg table for Spark's Parquet reader.

The reader matches columns by field id, so a renamed column still matches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg import types as I  # noqa: N812

from slackwater.errors import StartError, Topic

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql.types import StructType

_PLAIN: dict[Any, str] = {
    I.BooleanType: "BooleanType",
    I.IntegerType: "IntegerType",
    I.LongType: "LongType",
    I.FloatType: "FloatType",
    I.DoubleType: "DoubleType",
    I.DateType: "DateType",
    I.TimestampType: "TimestampNTZType",
    I.TimestamptzType: "TimestampType",
    I.StringType: "StringType",
    I.BinaryType: "BinaryType",
    I.FixedType: "BinaryType",
}


def to_spark_schema(table: str, schema: Schema) -> StructType:
    """Return the columns as a Spark schema with field ids. `table`: the table's name in messages.

    Raises StartError for a column that Spark's reader cannot return as the table defines it.
    """
    try:
        columns: StructType = _spark(schema.as_struct())
    except _UnreadError as error:
        raise StartError(f"{table}: {error}", Topic.TABLE_READER) from None
    return columns


class _UnreadError(Exception):
    pass


def _spark(kind: Any) -> Any:
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, I.StructType):
        return T.StructType([_field(field) for field in kind.fields])
    if isinstance(kind, I.ListType):
        return T.ArrayType(_spark(kind.element_type), True)
    if isinstance(kind, I.MapType):
        return T.MapType(_spark(kind.key_type), _spark(kind.value_type), True)
    if isinstance(kind, I.DecimalType):
        return T.DecimalType(kind.precision, kind.scale)
    if type(kind) not in _PLAIN:
        raise _UnreadError(f"of type {kind}, which Spark's Parquet reader does not support; expected another type")
    return getattr(T, _PLAIN[type(kind)])()


def _field(field: I.NestedField) -> Any:
    from pyspark.sql import types as T  # noqa: N812

    if field.initial_default is not None:
        raise _UnreadError(
            f'column "{field.name}" has a default for rows written before it was added, which Spark\'s Parquet reader '
            "does not apply; expected NULL there"
        )
    try:
        data_type = _spark(field.field_type)
    except _UnreadError as error:
        raise (
            error if str(error).startswith("column ") else _UnreadError(f'column "{field.name}" is {error}')
        ) from None
    return T.StructField(field.name, data_type, True, {"parquet.field.id": field.field_id})
