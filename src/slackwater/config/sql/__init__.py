"""Static checks of SQL against its input columns, without Spark. They need columns and types, but no config."""
