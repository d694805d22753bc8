"""Storage of files: local directories and object stores, with their clients, caches and locks. Used by states and targets."""
