"""Read-only queries of a state and of published results. They do not need Spark, and work while a runner is active."""
