"""Systems that results go to, each with the marker of its last epoch; knows no state and no Spark."""
