"""From a config to a run and its end: the parts put together, started, watched, stopped, told; knows no command line."""
