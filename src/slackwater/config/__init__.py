"""The specs that users write: validated and immutable. This package knows nothing about Spark, state or clocks."""
