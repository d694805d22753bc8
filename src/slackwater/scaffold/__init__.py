"""Implements `slackwater init`: reads a data sample, finds times and keys in it, and writes a config with comments.

May import: core, errors.
"""
