"""The console as a target."""
