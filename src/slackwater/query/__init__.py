"""Looking into states from outside: what is open, for whom, since when; beside a running pipeline, without Spark."""
