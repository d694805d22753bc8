"""The work of a stage on one shard: the only room that knows windows or joins and state; it knows no Spark, no sources and no targets."""
