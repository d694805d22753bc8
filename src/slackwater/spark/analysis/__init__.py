"""Checks of schemas and SQL with Spark's analyzer, before any data is read, and the origin of rows in SQL."""
