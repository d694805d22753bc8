"""Spark sessions: start Spark or open a private session, and provide the jars and connectors that Spark lacks."""
