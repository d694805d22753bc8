"""Amazon Kinesis streams and Google Pub/Sub subscriptions as sources."""
