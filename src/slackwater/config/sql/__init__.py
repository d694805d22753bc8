"""Static checks of SQL against its input columns, without Spark. This package knows columns and types, not configs."""
