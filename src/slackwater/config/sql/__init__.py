"""Static checks of SQL texts against their input columns, without Spark. This room knows columns and types, not configs."""
