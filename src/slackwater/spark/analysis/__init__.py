"""Check schemas and SQL with Spark's analyzer before any data is read, and carry the origin of rows through SQL."""
