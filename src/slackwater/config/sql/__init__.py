"""Static checks of SQL against its input columns, without Spark. It needs columns and types, but no config."""
