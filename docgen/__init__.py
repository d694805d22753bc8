"""Generate the pages and pictures of docs/ that come from the code. `make reference` writes them, and tests compare them."""
