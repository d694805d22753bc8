"""The systems that results go to, each with a marker of its last epoch. This package knows neither state nor Spark."""
