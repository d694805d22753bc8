"""Dead letters once more, and the corrections that they bring; knows no Spark and no command line."""
