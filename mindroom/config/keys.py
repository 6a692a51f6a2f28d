"""Which keys config.yaml knows at which place, read from the schema itself."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mindroom.config.problems import KeyPath
from mindroom.config.schema import Config

_JsonSchema = Mapping[str, Any]

ANY_NAME: Final = "<name>"
"""Stands in `all_keys` for the name of an agent, model, room or account."""


def keys_at(path: KeyPath) -> tuple[str, ...]:
    """The keys a mapping at `path` may hold; () where names are free or nothing is known.

    `path` may hold the provider of a model behind the model's name, as pydantic writes places.
    """
    root = Config.model_json_schema()
    here: _JsonSchema = root
    for step in path:
        here = _below(root, here, step)
    return tuple(_resolved(root, here).get("properties", {}))


def all_keys() -> tuple[str, ...]:
    """Every key path of the schema, names written as `<name>`, sorted."""
    root = Config.model_json_schema()
    return tuple(sorted(set(_walk(root, root, ()))))


def _resolved(root: _JsonSchema, schema: _JsonSchema) -> _JsonSchema:
    if "anyOf" in schema:
        schema = next((branch for branch in schema["anyOf"] if branch.get("type") != "null"), {})
    if "$ref" in schema:
        resolved: _JsonSchema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        return resolved
    return schema


def _below(root: _JsonSchema, schema: _JsonSchema, step: str | int) -> _JsonSchema:
    schema = _resolved(root, schema)
    branch = schema.get("discriminator", {}).get("mapping", {}).get(step)
    if branch is not None:
        return {"$ref": branch}
    below: _JsonSchema = schema.get("properties", {}).get(step) or schema.get("additionalProperties") or {}
    return below


def _walk(root: _JsonSchema, schema: _JsonSchema, path: tuple[str, ...]) -> Iterator[str]:
    schema = _resolved(root, schema)
    for branch in schema.get("oneOf", ()):
        yield from _walk(root, branch, path)
    for key, value in schema.get("properties", {}).items():
        yield ".".join((*path, key))
        yield from _walk(root, value, (*path, key))
    if isinstance(entries := schema.get("additionalProperties"), Mapping):
        yield from _walk(root, entries, (*path, ANY_NAME))
