"""docker-compose.yml hangs together: files, variables, order of start, and a configuration that MindRoom accepts."""

import re
from typing import Any

import yaml

from mindroom.config import parse_config
from tests.docs.pages import REPOSITORY

TEXT = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DEPLOY = REPOSITORY / "deploy" / "compose"


def test_it_starts_a_database_a_homeserver_and_mindroom() -> None:
    assert {"postgres", "synapse", "mindroom"} <= set(SERVICES)
    assert all("image" in service for service in SERVICES.values())


def test_each_service_waits_for_services_that_exist() -> None:
    known = {"service_healthy", "service_completed_successfully"}
    for service in SERVICES.values():
        for name, wait in service.get("depends_on", {}).items():
            assert name in SERVICES
            assert wait["condition"] in known


def test_named_volumes_are_declared_and_mounted_files_exist() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    named = {source for source in mounted if not source.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    assert [source for source in mounted if source.startswith(".") and not (REPOSITORY / source).is_file()] == []


def test_the_images_are_built_from_a_file_that_exists() -> None:
    builds = [service["build"] for service in SERVICES.values() if "build" in service]
    assert builds
    assert all((REPOSITORY / build["context"] / build["dockerfile"]).is_file() for build in builds)


def test_every_secret_comes_from_a_variable_that_the_example_names_and_none_has_a_default() -> None:
    variables = set(re.findall(r"\$\{(\w+)", TEXT))
    example = re.findall(r"^(\w+)=(.*)$", (DEPLOY / "env.example").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert variables == {name for name, _ in example}
    assert [value for _, value in example if value] == []
    assert len(re.findall(r"\$\{\w+:\?", TEXT)) == TEXT.count("${")


def test_its_configuration_is_valid_and_names_the_homeserver_of_the_file() -> None:
    config = parse_config((DEPLOY / "config.yaml").read_text(encoding="utf-8"))
    assert config.matrix.homeserver == "http://synapse:8008"
    assert config.matrix.server_name == SERVICES["synapse-config"]["environment"]["SYNAPSE_SERVER_NAME"]
    assert config.http.host == "0.0.0.0"
    registration = config.matrix.registration
    assert registration is not None
    assert registration.shared_secret_env in SERVICES["mindroom"]["environment"]


def test_nothing_listens_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
