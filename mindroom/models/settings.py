"""What the model edge must know of one configured model; made by `app` from the configuration."""

from dataclasses import dataclass, field
from enum import StrEnum


class ModelProvider(StrEnum):
    """Where answers come from."""

    OFFLINE = "offline"
    OPENAI_LIKE = "openai_like"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One configured model. The key never appears in a repr (I3)."""

    name: str
    """Its key in the configuration, which requests name."""
    provider: ModelProvider
    id: str
    """The provider's name for it."""
    base_url: str = ""
    """Where `openai_like` requests go; unused by `offline`."""
    api_key: str = field(default="", repr=False)
    timeout_seconds: float = 120.0
    """The longest silence of the provider that is borne, before and between pieces of an answer."""
