"""Window computations as pure functions over data frames. This package does not use Spark, files or a clock.

May import: config, core, errors, watermark.
"""
