"""Slackwater, Flink and Kafka Streams next to each other: the same records from one Kafka broker, results to it, exactly once."""
