"""An HTTP server with bounded connections for any ASGI application. It does not know states or pipelines.

May import: errors, logging.
"""
