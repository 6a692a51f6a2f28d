"""YAML text to plain data that remembers its lines.

Knows nothing of our keys. Keys are always text, also where YAML would read `on` or `1`; duplicate keys, merge keys,
keys without a value, foreign tags and unstorable characters are findings. Never builds anything but dict, list, str,
bool, int, float and None.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from mindroom.config.problems import ConfigInvalid, Finding, KeyPath, Problem

_MAX_NODES: Final = 20_000
"""Far above any real file; aliases of aliases would otherwise grow without bound."""
_TAG: Final = "tag:yaml.org,2002:"
_TYPED: Final = frozenset(_TAG + kind for kind in ("bool", "int", "float"))
_TEXT: Final = frozenset(_TAG + kind for kind in ("str", "timestamp", "value", "merge"))


@dataclass(frozen=True, slots=True)
class Document:
    """The data of one file, the line of each key and list item, and what was wrong on the way."""

    data: object
    lines: Mapping[KeyPath, int]
    findings: tuple[Finding, ...]

    def line(self, path: KeyPath) -> int:
        """The line of `path`, else of what it stands in; 1 at the top."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(text: str, *, file: str) -> Document:
    """The one document in `text`. Raises ConfigInvalid when it is not YAML."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        reader = _Reader(loader)
        root = loader.get_single_node()
        data = None if root is None else reader.value(root, ())
    except yaml.YAMLError as error:
        raise ConfigInvalid([_syntax_problem(error, text=text, file=file)]) from error
    except RecursionError as error:
        raise ConfigInvalid([Problem(file, 1, "", "is nested too deeply")]) from error
    finally:
        if loader is not None:
            loader.dispose()
    return Document(data, reader.lines, tuple(reader.findings))


def _syntax_problem(error: yaml.YAMLError, *, text: str, file: str) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return Problem(file, line, "", "holds a character that YAML does not allow")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(file, 1, "", f"is not YAML: {error}")
    mark = error.problem_mark or error.context_mark
    reason = " ".join(part for part in (error.context, error.problem) if part)
    place = f" (column {mark.column + 1})" if mark else ""
    hint = "; indent with spaces, not tabs" if "'\\t'" in reason else ""
    return Problem(file, mark.line + 1 if mark else 1, "", f"is not YAML: {reason}{place}{hint}")


class _Reader:
    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._open: set[int] = set()
        self._nodes = 0
        self.lines: dict[KeyPath, int] = {}
        self.findings: list[Finding] = []

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise yaml.MarkedYAMLError(problem="too many values", problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            raise yaml.MarkedYAMLError(problem="an alias stands inside itself", problem_mark=node.start_mark)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            assert isinstance(node, yaml.SequenceNode)
            return self._sequence(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        self._expect_tag(node, path, "map")
        data: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            line = key_node.start_mark.line + 1
            if key in data:
                self.findings.append(Finding(here, f"is given twice, first on line {self.lines[here]}", line))
                continue
            self.lines[here] = line
            data[key] = self.value(value_node, here)
        return data

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode):
            self.findings.append(Finding(path, "has a list or a mapping as a key; put the key in quotes", line))
            return None
        if node.tag == _TAG + "merge":
            self.findings.append(Finding(path, "uses the merge key '<<', which is not supported", line))
            return None
        return self._storable(str(node.value), path)

    def _sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[object]:
        self._expect_tag(node, path, "seq")
        items: list[object] = []
        for index, item in enumerate(node.value):
            here = (*path, index)
            self.lines[here] = item.start_mark.line + 1
            items.append(self.value(item, here))
        return items

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        if node.tag == _TAG + "null":
            self.findings.append(Finding(path, "has no value; give it one or remove the key"))
            return None
        if node.tag in _TYPED:
            try:
                return self._loader.construct_object(node)
            except (ValueError, KeyError, IndexError):  # an explicit tag over a text that is no such value
                self.findings.append(Finding(path, f"{node.value!r} is not a {node.tag.removeprefix(_TAG)} value"))
                return None
        if node.tag not in _TEXT:
            self.findings.append(Finding(path, f"the tag {node.tag!r} is not supported"))
        return self._storable(str(node.value), path)

    def _expect_tag(self, node: yaml.Node, path: KeyPath, kind: str) -> None:
        if node.tag != _TAG + kind:
            self.findings.append(Finding(path, f"the tag {node.tag!r} is not supported"))

    def _storable(self, text: str, path: KeyPath) -> str:
        if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
            self.findings.append(Finding(path, "holds a NUL or half a character, which cannot be stored"))
            return "".join("\ufffd" if c == "\x00" or "\ud800" <= c <= "\udfff" else c for c in text)
        return text
