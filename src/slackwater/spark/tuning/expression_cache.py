"""Cache Spark expressions and schemas that are the same in every epoch, to save calls to the JVM.

Without the cache, each part of an expression costs one call to the JVM, and each schema costs two.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.connectors import spark_connect_support
from slackwater.tuning_switches import is_enabled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
_MAX_ENTRIES = 256  # a limit is needed because some expressions change with every epoch, such as a clock reading


@dataclass(frozen=True)
class ExpressionCache:
    """Cache of the expressions and schemas of one step in one Spark session."""

    _entries: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)

    def get_or_create(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached value for a key. If it is not cached, create it with `make`."""
        if not is_enabled("expression_cache"):
            return make()
        if key in self._entries:
            self._entries.move_to_end(key)
        else:
            self._entries[key] = make()
            if len(self._entries) > _MAX_ENTRIES:
                self._entries.popitem(last=False)
        cached: T = self._entries[key]
        return cached

    def select(self, frame: DataFrame, exprs: Sequence[str], schema_key: Hashable = None) -> DataFrame:
        """Return `frame.selectExpr(*exprs)`, using cached expressions.

        Args:
            frame: The input.
            exprs: The SQL expressions.
            schema_key: Identifies the schema of the input: equal keys and expressions must give equal schemas. None if
                the schema of the result is never read.
        """
        from pyspark.sql import DataFrame as AnyFrame
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        if not isinstance(frame, Classic):
            selected = frame.selectExpr(*exprs)
            return selected if schema_key is None else self.with_schema(selected, (schema_key, tuple(exprs)))
        jvm_exprs: Any = self.get_or_create(("exprs", tuple(exprs)), lambda: frame._jseq(list(exprs)))
        selected = AnyFrame(frame._jdf.selectExpr(jvm_exprs), frame.sparkSession)
        return selected if schema_key is None else self.with_schema(selected, (schema_key, tuple(exprs)))

    def with_schema(self, frame: DataFrame, key: Hashable) -> DataFrame:
        """Return `frame` with its schema set from the cache. Frames with equal `key` must have equal schemas."""
        if not is_enabled("expression_cache"):
            return frame
        schema = self.get_or_create(("schema", key), lambda: frame.schema)
        vars(frame)["_cached_schema" if spark_connect_support.is_connect(frame) else "schema"] = (
            schema  # PySpark's own cache of the schema
        )
        return frame
