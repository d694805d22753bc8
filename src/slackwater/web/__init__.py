"""An HTTP server with bounded connections for any ASGI application. It is independent of states and pipelines.

May import: errors, logging.
"""
