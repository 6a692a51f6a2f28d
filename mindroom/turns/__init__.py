"""Turns: from a heard source to a decision, and the order in which decided sources are answered."""
