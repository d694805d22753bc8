"""The blocks of the page, one module each: a function that builds immutable values from a commit, then their drawing."""
