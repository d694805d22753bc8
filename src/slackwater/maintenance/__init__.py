"""State maintenance: sizes, history, verification, compaction and offsets.

No operation runs while a runner that it would disturb is active.

May import: config, connectors, core, engine, errors, evolution, joins, operators, query, state, storage, watermark,
windows.
"""
