"""The shape of config.yaml: every key, its type and its default.

Owns nothing but shape. References between sections are checked in `references`, and a Config that was not built by
`loader` has not passed them. Secrets never stand here, only the names of environment variables.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WrapSerializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mindroom.config.formats import (
    check_env_name,
    check_name,
    check_one_line,
    check_server_name,
    check_url,
    check_user_id,
)

DEFAULT_MODEL = "default"
"""The model of an agent that names none."""


def _serialize_section(section: Mapping[str, object], handler: SerializerFunctionWrapHandler) -> object:
    return handler(dict(section))


def _no_entries() -> Mapping[str, Any]:
    return MappingProxyType({})


def _sorted_set(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


Name = Annotated[str, AfterValidator(check_name)]
OneLine = Annotated[str, AfterValidator(check_one_line)]
ServerName = Annotated[str, AfterValidator(check_server_name)]
MatrixUserId = Annotated[str, AfterValidator(check_user_id)]
Url = Annotated[str, AfterValidator(check_url)]
EnvName = Annotated[str, AfterValidator(check_env_name)]

_Entry = TypeVar("_Entry")
Section = Annotated[Mapping[Name, _Entry], AfterValidator(MappingProxyType), WrapSerializer(_serialize_section)]
"""A read-only mapping of names to entries."""


class Answers(StrEnum):
    """When an agent answers: AUTO also unmentioned where it is the only candidate, MENTIONED only when named."""

    AUTO = "auto"
    MENTIONED = "mentioned"


class ThreadMode(StrEnum):
    """Where an agent answers: in a thread rooted at the message, or plainly in the room."""

    THREAD = "thread"
    ROOM = "room"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Registration(_Frozen):
    """How accounts that do not exist yet are registered on the homeserver."""

    shared_secret_env: EnvName


class Account(_Frozen):
    """An existing Matrix account that an agent uses; logged in by password or by access token."""

    user_id: MatrixUserId
    password_env: EnvName | None = None
    token_env: EnvName | None = None
    device_id: OneLine | None = None

    @model_validator(mode="after")
    def _one_credential(self) -> Self:
        if (self.password_env is None) == (self.token_env is None):
            raise PydanticCustomError("credential", "needs either password_env or token_env")
        if self.device_id is not None and self.token_env is None:
            raise PydanticCustomError("credential", "device_id goes with token_env only")
        return self


class Matrix(_Frozen):
    """The homeserver and how agents get their accounts there."""

    homeserver: Url
    server_name: ServerName
    registration: Registration | None = None
    accounts: Section[Account] = Field(default_factory=_no_entries)


class OpenAILikeModel(_Frozen):
    """A model behind an endpoint that speaks the OpenAI chat protocol."""

    provider: Literal["openai_like"]
    id: OneLine
    base_url: Url
    api_key_env: EnvName | None = None
    timeout_seconds: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 120.0


class OfflineModel(_Frozen):
    """The deterministic model without network or key."""

    provider: Literal["offline"]


ModelSettings = Annotated[OpenAILikeModel | OfflineModel, Field(discriminator="provider")]


class Agent(_Frozen):
    """One agent: who it is, which model speaks for it, where it sits and when it answers."""

    display_name: OneLine | None = None
    role: str = ""
    model: str = DEFAULT_MODEL
    rooms: Annotated[tuple[str, ...], AfterValidator(_sorted_set)] = ()
    answers: Answers = Answers.AUTO
    thread_mode: ThreadMode = ThreadMode.THREAD


class Room(_Frozen):
    """A room that the runtime creates when it is missing."""

    display_name: OneLine | None = None


class Authorization(_Frozen):
    """Who is answered; nobody else is (I1)."""

    users: Annotated[tuple[MatrixUserId, ...], AfterValidator(_sorted_set)] = ()


class Http(_Frozen):
    """Where metrics and health are served; port 0 takes any free one."""

    host: OneLine = "127.0.0.1"
    port: Annotated[int, Field(strict=True, ge=0, le=65535)] = 8765


class Config(_Frozen):
    """A whole config.yaml. Get one from `load_config` or `parse_config`, which check references too."""

    matrix: Matrix
    models: Section[ModelSettings]
    agents: Section[Agent]
    rooms: Section[Room] = Field(default_factory=_no_entries)
    authorization: Authorization = Authorization()
    http: Http = Http()
