"""Systems that rows come from: how they are listed, read and decoded; knows no windows and no commits."""
