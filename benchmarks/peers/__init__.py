"""Comparison of Slackwater, Flink and Kafka Streams: from Kafka to Kafka, exactly once, with the same records."""
