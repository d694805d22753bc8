"""State maintenance: sizes, history, verification, compaction and offsets.

No operation runs while a runner that it would disturb is active.
"""
