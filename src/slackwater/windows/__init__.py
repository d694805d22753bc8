"""Window computations as pure functions over data frames. This package uses neither Spark, nor files, nor a clock.

May import: config, core, errors, watermark.
"""
