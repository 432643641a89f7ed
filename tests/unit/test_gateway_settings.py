"""The gateway starts only with settings that are safe, and says which one is not."""

from __future__ import annotations

import json
import resource

import pytest

from libs.contracts.errors import ConfigurationError
from services.gateway.server import FILES, make_room
from services.gateway.settings import GatewaySettings

SECRET = "0123456789abcdef"


def load(**environment: str) -> GatewaySettings:
    return GatewaySettings.load("gateway", environment)


def test_the_defaults_are_local_and_open_to_nobody_else() -> None:
    settings = load()
    assert (settings.host, settings.port, settings.keys) == ("127.0.0.1", 8000, {})
    assert settings.limits.max_iterations == 50


def test_the_deployment_s_limits_are_read_from_json() -> None:
    settings = load(PERDURE_LIMITS='{"max_iterations": 500, "max_cost_usd": 2.5}')
    assert (settings.limits.max_iterations, settings.limits.max_cost_usd) == (500, 2.5)


def test_a_secret_or_several_belong_to_a_tenant() -> None:
    keys = {"a": SECRET, "b": [f"{SECRET}1", f"{SECRET}2"]}
    settings = load(RUNTIME_API_KEYS_JSON=json.dumps(keys), PERDURE_HOST="0.0.0.0")
    assert [secret.get_secret_value() for secret in settings.keys["b"]] == [f"{SECRET}1", f"{SECRET}2"]
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("PERDURE_HOST", "0.0.0.0", "RUNTIME_API_KEYS_JSON"),
        ("PERDURE_HOST", "example.org", "reachable from outside"),
        ("PERDURE_PORT", "http", "PERDURE_PORT"),
        ("PERDURE_PORT", "70000", "PERDURE_PORT"),
        ("PERDURE_LIMITS", "{", "PERDURE_LIMITS"),
        ("PERDURE_LIMITS", '{"max_iterations": "many"}', "PERDURE_LIMITS"),
        ("PERDURE_LIMITS", '{"max_iterations": -1}', "max_iterations"),
        ("PERDURE_LIMITS", '{"max_iteration": 5}', "unknown field"),
        ("RUNTIME_API_KEYS_JSON", "{}", "names no tenant"),
        ("RUNTIME_API_KEYS_JSON", "[1]", "RUNTIME_API_KEYS_JSON"),
        ("RUNTIME_API_KEYS_JSON", '{"a": "hunter2"}', "at least 16"),
        ("RUNTIME_API_KEYS_JSON", '{"a": []}', "at least 16"),
        ("RUNTIME_API_KEYS_JSON", json.dumps({"A b": SECRET}), "must match"),
        ("RUNTIME_API_KEYS_JSON", json.dumps({"a": SECRET, "b": SECRET}), "two tenants"),
        ("PERDURE_HOTS", "x", "PERDURE_HOTS"),
        ("PERDURE_OPERATOR_KEY", "hunter2", "PERDURE_OPERATOR_KEY"),
    ],
)
def test_a_bad_value_is_named_and_no_secret_repeated(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(**{name: value})
    assert said in caught.value.message
    assert SECRET not in caught.value.message
    assert "hunter2" not in caught.value.message


def test_the_operators_have_a_secret_of_their_own() -> None:
    keys = json.dumps({"a": SECRET})
    settings = load(RUNTIME_API_KEYS_JSON=keys, PERDURE_OPERATOR_KEY=f"{SECRET}-operator")
    assert settings.operator_key is not None
    assert SECRET not in repr(settings)
    with pytest.raises(ConfigurationError, match="one of their own") as caught:
        load(RUNTIME_API_KEYS_JSON=keys, PERDURE_OPERATOR_KEY=SECRET)
    assert SECRET not in caught.value.message


def test_a_gateway_may_open_a_file_for_each_of_its_clients() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        make_room()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == (FILES if hard == resource.RLIM_INFINITY else min(FILES, hard))
        assert hard == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
