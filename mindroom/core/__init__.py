"""Values, ports and pure helpers that every package may use; imports nothing of ours outside `core`."""
