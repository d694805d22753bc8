"""Slackwater next to Spark's own stateful operators: `python -m benchmarks.run`."""
