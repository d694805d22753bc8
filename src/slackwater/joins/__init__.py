"""Stream joins as pure functions over frames: values in, values out; knows no Spark, no files, no clock."""
