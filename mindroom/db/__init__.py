"""PostgreSQL: engine, named transactions, leases, schema window, sealing, the embedded server."""
