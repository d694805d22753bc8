"""The command line: one module per command or group of commands. It only formats and prints what other packages return."""
