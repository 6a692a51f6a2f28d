"""From a file to a Config: reads, checks shape and references, and tells every problem at once."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mindroom.config.document import Document, read_document
from mindroom.config.keys import keys_at
from mindroom.config.problems import ConfigInvalid, Finding, KeyPath, Problem, key_text, near_match
from mindroom.config.references import check_references
from mindroom.config.schema import Config
from mindroom.core.errors import UserError

_PLAIN_WORDS = {
    "missing": "is required",
    "string_type": "must be text; put it in quotes",
    "model_type": "must hold keys of its own",
    "model_attributes_type": "must hold keys of its own",
    "dict_type": "must hold names with their entries",
    "mapping_type": "must hold names with their entries",
    "tuple_type": "must be a list",
    "union_tag_not_found": "needs the key 'provider': 'openai_like' or 'offline'",
}
"""Our words for pydantic's error types."""


def load_config(path: Path) -> Config:
    """The configuration in the file at `path`.

    Raises UserError when the file cannot be read, ConfigInvalid (a UserError) with every problem of its content.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}; write one with `mindroom init` or name another.") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigInvalid([Problem(str(path), line, "", "is not UTF-8 text")]) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return parse_config(text, file=str(path))


def parse_config(text: str, *, file: str = "config.yaml") -> Config:
    """The configuration written in `text`; `file` is what problems call it. Raises ConfigInvalid."""
    document = read_document(text, file=file)
    data = document.data
    if data is None:
        raise ConfigInvalid([Problem(file, 1, "", "is empty; `mindroom init` writes one to start from")])
    if not isinstance(data, dict):
        raise ConfigInvalid([Problem(file, 1, "", "must hold keys such as 'matrix:' and 'agents:' at the top")])
    findings = [*document.findings, *check_references(data)]
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        findings += _shape_findings(error)
        raise _invalid(findings, document, file=file) from error
    if findings:
        raise _invalid(findings, document, file=file)
    return config


def _invalid(findings: list[Finding], document: Document, *, file: str) -> ConfigInvalid:
    return ConfigInvalid(
        Problem(file, finding.line or document.line(finding.path), key_text(finding.path), finding.message)
        for finding in findings
    )


def _shape_findings(error: ValidationError) -> Iterator[Finding]:
    for detail in error.errors(include_url=False):
        if detail["input"] is None and detail["type"] != "missing":
            continue  # the document told already that the key has no value
        place = detail["loc"]
        yield Finding(_data_path(place), _sentence(detail, place))


def _data_path(place: KeyPath) -> KeyPath:
    """`place` without what pydantic adds: the provider behind a model's name, and '[key]' behind a bad key."""
    path = place[:-1] if place and place[-1] == "[key]" else place
    return (*path[:2], *path[3:]) if path[:1] == ("models",) else path


def _sentence(detail: ErrorDetails, place: KeyPath) -> str:
    kind = detail["type"]
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"is not a known key.{near_match(str(place[-1]), keys_at(place[:-1]))}"
    if kind == "enum":
        given = detail["input"]
        shown = f", not {json.dumps(given)}" if isinstance(given, str | bool | int | float) else ""
        return f"must be {context['expected']}{shown}"
    if kind == "union_tag_invalid":
        return f"has the provider {context['tag']!r}; known are {context['expected_tags']}"
    if kind == "value_error":
        return str(context["error"])
    return _PLAIN_WORDS.get(kind, detail["msg"].replace("Input should be", "must be"))
