"""Implements `slackwater init`: reads a data sample, finds times and keys in it, and renders a config with comments.

May import: core, errors.
"""
