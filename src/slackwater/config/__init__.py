"""The specs that a user writes: validated and frozen. This room knows nothing of Spark, state or clocks."""
