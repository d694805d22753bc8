"""What a store promises, the record of a commit, and the stores themselves; knows no config, no Spark and no target."""
