"""DID: turns, their sources and their completed steps."""
