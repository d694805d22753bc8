"""An HTTP server with bounded connections for any ASGI application. It knows nothing about states or pipelines.

May import: errors, logging.
"""
