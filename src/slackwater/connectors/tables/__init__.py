"""What the connectors for versioned tables (Delta and Iceberg) have in common."""
