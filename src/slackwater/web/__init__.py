"""An HTTP server with bounded connections for any ASGI application. Independent of states and pipelines.

May import: errors, logging.
"""
