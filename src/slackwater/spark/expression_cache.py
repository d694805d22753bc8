"""DataFrames that are made alike in every epoch: what Spark was told, or said, once is kept, so that an epoch is few calls into its process.

A list of expressions is as many calls as it has parts, and a question for columns two; both are the same in every epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.sources import spark_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
_MAX_ENTRIES = 256  # expressions that change with the epoch, as a clock reading, push out others


@dataclass(frozen=True)
class ExpressionCache:
    """Of one step, on one session of Spark."""

    _entries: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)

    def get_or_create(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for this key before; else it is made."""
        if key in self._entries:
            self._entries.move_to_end(key)
        else:
            self._entries[key] = make()
            if len(self._entries) > _MAX_ENTRIES:
                self._entries.popitem(last=False)
        cached: T = self._entries[key]
        return cached

    def select(self, frame: DataFrame, exprs: Sequence[str], schema_key: Hashable = None) -> DataFrame:
        """`selectExpr`. `schema_key`: what the frame is of: from frames of one thing the same expressions make the same columns; None: nobody
        asks for its columns."""
        from pyspark.sql import DataFrame as AnyFrame
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        if not isinstance(frame, Classic):
            selected = frame.selectExpr(*exprs)
            return selected if schema_key is None else self.with_schema(selected, (schema_key, tuple(exprs)))
        jvm_exprs: Any = self.get_or_create(("exprs", tuple(exprs)), lambda: frame._jseq(list(exprs)))
        selected = AnyFrame(frame._jdf.selectExpr(jvm_exprs), frame.sparkSession)
        return selected if schema_key is None else self.with_schema(selected, (schema_key, tuple(exprs)))

    def with_schema(self, frame: DataFrame, key: Hashable) -> DataFrame:
        """A DataFrame whose columns are those of all with this key."""
        schema = self.get_or_create(("schema", key), lambda: frame.schema)
        vars(frame)["_cached_schema" if spark_connect.is_connect(frame) else "schema"] = (
            schema  # where PySpark keeps it once it was asked for
        )
        return frame
