"""MindRoom hosts teams of AI agents as ordinary users of Matrix rooms, durable on PostgreSQL."""

__version__ = "0.1.0"
