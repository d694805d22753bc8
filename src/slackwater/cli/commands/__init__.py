"""What the command line takes, command by command; each loads what it does only when it is called."""
