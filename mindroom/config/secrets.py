"""Secrets from the environment, looked up when they are needed. Never logs, stores or repeats a value (I3)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mindroom.config.problems import key_text
from mindroom.config.schema import Account, Config, OpenAILikeModel
from mindroom.core.errors import UserError


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A key of the configuration that names an environment variable."""

    key: str
    env_name: str


def resolve_secret(env_name: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """The value of an environment variable. Raises UserError naming the variable when it is unset or empty."""
    value = environ.get(env_name, "")
    if not value:
        raise UserError(
            f"The environment variable {env_name} is not set or empty; the configuration names it, so set it."
        )
    return value


def secret_references(config: Config) -> tuple[SecretReference, ...]:
    """Every environment variable the configuration names, in the order of the file's sections."""
    found: list[SecretReference] = []
    if (registration := config.matrix.registration) is not None:
        found.append(_reference("matrix", "registration", "shared_secret_env", env=registration.shared_secret_env))
    for name, account in config.matrix.accounts.items():
        found.append(_account_reference(name, account))
    for name, model in config.models.items():
        if isinstance(model, OpenAILikeModel) and model.api_key_env is not None:
            found.append(_reference("models", name, "api_key_env", env=model.api_key_env))
    return tuple(found)


def _account_reference(name: str, account: Account) -> SecretReference:
    if account.password_env is not None:
        return _reference("matrix", "accounts", name, "password_env", env=account.password_env)
    assert account.token_env is not None, "the schema wants one of the two"
    return _reference("matrix", "accounts", name, "token_env", env=account.token_env)


def _reference(*path: str, env: str) -> SecretReference:
    return SecretReference(key_text(path), env)
