"""Compare a config with a state, and rewrite the state for it. This package uses no engine and no Spark."""
