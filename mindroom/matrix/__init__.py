"""The Matrix edge: the only importer of nio. Implements the homeserver ports of `core.ports`; knows no ledger."""
