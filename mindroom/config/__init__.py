"""config.yaml: its schema, loading with every problem told, and the effective view the runtime uses."""

from mindroom.config.effective import (
    EffectiveAgent,
    EffectiveConfig,
    EffectiveRoom,
    config_generation,
    effective_config,
)
from mindroom.config.loader import load_config, parse_config
from mindroom.config.problems import ConfigInvalid, Problem
from mindroom.config.schema import (
    Account,
    Answers,
    Config,
    Http,
    ModelSettings,
    OfflineModel,
    OpenAILikeModel,
    Registration,
    ThreadMode,
)
from mindroom.config.secrets import SecretReference, resolve_secret, secret_references

__all__ = [
    "Account",
    "Answers",
    "Config",
    "ConfigInvalid",
    "EffectiveAgent",
    "EffectiveConfig",
    "EffectiveRoom",
    "Http",
    "ModelSettings",
    "OfflineModel",
    "OpenAILikeModel",
    "Problem",
    "Registration",
    "SecretReference",
    "ThreadMode",
    "config_generation",
    "effective_config",
    "load_config",
    "parse_config",
    "resolve_secret",
    "secret_references",
]
