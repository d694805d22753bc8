"""State maintenance: sizes, history, verification, compaction and offsets.

None of it runs next to a runner that it would disturb.
"""
