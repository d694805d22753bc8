"""The blocks of the page, one module each.

Each module has a function that builds the block's immutable values from commits. Most also have functions that draw
these values.
"""
