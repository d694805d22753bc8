"""Start Spark, open private Spark sessions, and provide the jars and connectors that PySpark lacks."""
