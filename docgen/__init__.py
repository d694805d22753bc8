"""Makes the pages and pictures of docs/ that come from the code: `make reference` writes them, tests hold them to it."""
