"""Stream joins as pure functions over frames. This package uses no Spark, no files and no clock."""
