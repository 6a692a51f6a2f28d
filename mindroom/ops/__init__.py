"""What operators see and use: logs, health, metrics over HTTP, status."""
