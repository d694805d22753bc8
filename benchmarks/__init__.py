"""Benchmarks that compare Slackwater with Spark's own stateful operators: `python -m benchmarks.run`."""
