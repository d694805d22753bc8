"""A config held against a state: what differs, and the state rewritten for it; knows no engine and no Spark."""
