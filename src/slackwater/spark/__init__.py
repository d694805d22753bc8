"""The engine on Spark. Only this package and `sources` run Spark jobs. It knows nothing about commits."""
