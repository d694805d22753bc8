"""Slackwater beside Spark's own stateful operators: `python -m benchmarks.run`."""
