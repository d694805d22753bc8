"""Slackwater, Flink and Kafka Streams beside each other: the same records from one Kafka broker, results to it, exactly once."""
