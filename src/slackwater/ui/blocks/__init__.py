"""The blocks of the page. Each module builds immutable values from commits, and most modules also draw these values."""
