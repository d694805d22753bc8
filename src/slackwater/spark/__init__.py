"""The engine on Spark: with `sources`, the only room that runs jobs; knows nothing of commits."""
