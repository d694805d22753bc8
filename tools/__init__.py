"""Tools of `make lint`."""
