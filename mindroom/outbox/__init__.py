"""SAID: everything visible that we say, as rows, and the worker that says it."""
