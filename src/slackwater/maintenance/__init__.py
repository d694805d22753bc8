"""State maintenance: sizes, history, verification, compaction and offset resets.

Operations that would disturb a runner fail while one is active.

May import: config, connectors, core, engine, errors, evolution, joins, operators, query, state, storage, watermark,
windows.
"""
