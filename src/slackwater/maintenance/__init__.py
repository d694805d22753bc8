"""Looking after a state: what it weighs, how it grew, whether it is sound, and making it small; never beside a runner that it would disturb."""
