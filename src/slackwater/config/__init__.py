"""What a user describes: validated, frozen; knows no Spark, no state, no clock."""
