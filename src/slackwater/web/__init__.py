"""The one HTTP server of this process: bounded connections for any ASGI application; knows neither states nor pipelines."""
