"""The command line: one file per group of commands; knows what to print, and nothing of how it is found."""
