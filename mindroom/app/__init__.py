"""Composition root: how a process is put together. Reads like configuration."""

from mindroom.app.compose import Runtime, RuntimeSettings, compose

__all__ = ["Runtime", "RuntimeSettings", "compose"]
