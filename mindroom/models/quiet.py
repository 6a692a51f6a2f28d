"""Keeps libraries below the model edge from writing prompts or provider texts to any log or terminal (I2, I3)."""

import logging

SILENT = logging.CRITICAL + 1


def silence_libraries() -> None:
    """Must run before the first import of agno, which otherwise installs a handler that prints provider texts."""
    for name in ("agno", "agno-team", "agno-workflow", "openai"):
        logging.getLogger(name).setLevel(SILENT)
    for name in ("httpx", "httpx2", "httpcore", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)
