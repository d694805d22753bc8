"""Specs: what a user describes, validated and frozen. TOML and Python build the same objects."""
