"""What the sources of versioned tables have in common: Delta and Iceberg."""
