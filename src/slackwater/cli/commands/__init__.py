"""The commands with their arguments and options. Each command imports its implementation when it is called."""
