"""State maintenance: sizes, history, verification, compaction and offsets.

Operations that would disturb a runner do not run while one is active.

May import: config, connectors, core, engine, errors, evolution, joins, operators, query, state, storage, watermark,
windows.
"""
