"""Questions to a state and to what was published, beside a runner, without Spark; changes nothing."""
