"""What a SQL text does with the columns it is given, read without Spark; knows columns and their types, and no config."""
