"""Targets: write the results of each epoch, together with a marker that names the epoch. Independent of Spark."""
