"""From a record's bytes to columns, a file for each format; `formats.py` tells them apart."""
