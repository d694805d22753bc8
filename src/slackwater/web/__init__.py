"""HTTP server with limited connections for any ASGI application. Independent of states and pipelines."""
