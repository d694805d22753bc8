"""The engine on Spark. It runs the shard tasks of each epoch as Spark jobs."""
