"""Check schemas and SQL with Spark's analyzer before data is read, and extend SQL to carry the origin of rows."""
