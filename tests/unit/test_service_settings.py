"""What a service refuses before it touches anything, what it warns of, and that the documentation knows every setting."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import AliasChoices, BaseModel

from libs.chassis.addresses import without_secrets
from libs.chassis.reserved import Reserved
from libs.chassis.settings import KNOWN_NAMES, ServiceSettings, read_dotenv
from libs.contracts.errors import ConfigurationError
from services.executor.settings import ExecutorSettings
from services.gateway.settings import GatewaySettings
from services.scheduler.settings import SchedulerSettings
from services.toolhost.settings import ToolhostSettings
from services.verifier.settings import VerifierSettings

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "kind,name,value",
    [
        (ServiceSettings, "NATS_URL", "nonsense"),
        (ServiceSettings, "NATS_URL", "http://127.0.0.1:4222"),
        (ServiceSettings, "NATS_URL", "ws://127.0.0.1:4222"),
        (ServiceSettings, "NATS_URL", "nats://127.0.0.1:x"),
        (ServiceSettings, "NATS_URL", "nats://a:4222,"),
        (ServiceSettings, "NATS_MONITOR_URL", "127.0.0.1:8222"),
        (SchedulerSettings, "PERDURE_RETENTION_DAYS", "x"),
        (SchedulerSettings, "PERDURE_RETENTION_DAYS", "0"),
        (ToolhostSettings, "ENABLE_PROGRAM_TOOL", "maybe"),
        (GatewaySettings, "TENANT_REQUESTS_PER_MINUTE", "-5"),
        (GatewaySettings, "TENANT_MAX_QUEUED_RUNS", "-1"),
        (GatewaySettings, "DATABASE_URL", "mysql://somewhere/x"),
        (GatewaySettings, "DATABASE_URL", "postgres"),
        (ExecutorSettings, "OPENAI_BASE_URL", "api.example.com"),
        (ToolhostSettings, "RUN_TESTS_COMMAND", "[]"),
        (ToolhostSettings, "RUN_TESTS_COMMAND", '[" "]'),
        (SchedulerSettings, "PERDURE_LIMITS", '{"max_iterations": -1}'),
        (SchedulerSettings, "PERDURE_LIMITS", '{"max_iteration": 5}'),
        (SchedulerSettings, "PERDURE_LIMITS", '{"timeout_s": 0}'),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(
    kind: type[ServiceSettings], name: str, value: str
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        kind.load("any", {name: value})


@pytest.mark.parametrize(
    "url", ["nats://a", "tls://user:secret@a.example:4222", "localhost:4222", "nats://a:1, nats://b:2"]
)
def test_every_usual_way_to_write_the_address_of_a_server_is_taken(url: str) -> None:
    assert ServiceSettings.load("any", {"NATS_URL": url}).nats_url == url


def test_an_address_is_shown_without_its_secret() -> None:
    assert without_secrets("nats://me:secret@a:1, me:secret@b:2,c:3") == "nats://a:1,b:2,c:3"


def test_what_has_no_effect_yet_is_told_by_one_service() -> None:
    values = {
        "LANGFUSE_BASE_URL": "https://traces",
        "SANDBOX_IMAGE": "",
    }
    assert ExecutorSettings.load("executor", values).without_effect == ("LANGFUSE_BASE_URL",)
    assert ToolhostSettings.load("toolhost", values).without_effect == ()


def test_several_variables_on_one_line_of_dotenv_are_refused(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    for line in (
        "export A_KEY=secret B_URL=https://b",
        "A_KEY='secret' B_URL='b'",
        "A_KEY=secret, too B_URL=b",
    ):
        path.write_text(f"{line}\n")
        with pytest.raises(ConfigurationError, match=r"line 1 names several variables") as caught:
            read_dotenv(path)
        assert "secret" not in caught.value.message
    path.write_text("export A_KEY='one B_URL=two'\nB_URL=https://b?X=1\n")
    assert read_dotenv(path) == {"A_KEY": "one B_URL=two", "B_URL": "https://b?X=1"}


def test_every_setting_is_documented_and_known_to_all_services() -> None:
    told = set(
        re.findall(r"`([A-Z][A-Z0-9_]+)`", (REPOSITORY / "docs/configuration.md").read_text(encoding="utf-8"))
    )
    services = (GatewaySettings, SchedulerSettings, ExecutorSettings, ToolhostSettings, VerifierSettings)
    kinds = (*services, Reserved)
    read = {name for kind in kinds for name in aliases(kind)}
    # All services share one environment: a name that one reads must not keep another from starting.
    assert {name for name in read if name.startswith("PERDURE_")} <= KNOWN_NAMES
    names = read | KNOWN_NAMES
    # What every system sets is not a setting of ours.
    assert names - told - {"PATH", "TZ"} == set()


def aliases(kind: type[BaseModel]) -> Iterator[str]:
    for field in kind.model_fields.values():
        match field.validation_alias:
            case str(name):
                yield name
            case AliasChoices(choices=choices):
                yield from (str(choice) for choice in choices)
            case _:
                continue


_LOOK = """
import json, pathlib, sys
from deploy.dev.plan import MODEL_KEYS
from libs.chassis.settings import only_in_dotenv, reread
seen = [sorted(only_in_dotenv(MODEL_KEYS)), reread(*MODEL_KEYS)]
pathlib.Path(".env").write_text("OPENAI_API_KEY=second")
print(json.dumps([*seen, reread(*MODEL_KEYS)]))
"""


@pytest.mark.parametrize(
    "environment, seen",
    [
        ({}, [["OPENAI_API_KEY"], ["first", False], ["second", False]]),
        ({"OPENAI_API_KEY": "mine"}, [[], ["mine", True], ["mine", True]]),
        ({"OPENAI_API_KEY": "", "DASHSCOPE_API_KEY": "mine"}, [[], ["mine", True], ["mine", True]]),
    ],
)
def test_a_key_in_dotenv_is_left_there_and_read_anew_unless_the_environment_says_otherwise(
    tmp_path: Path, environment: dict[str, str], seen: list[object]
) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=first")
    looked = subprocess.run(
        [sys.executable, "-c", _LOOK],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        check=True,
    )
    assert json.loads(looked.stdout) == seen


_REPLACED = """
import json, pathlib
from services.verifier.settings import VerifierSettings
settings = VerifierSettings.load("verifier")
before, redaction = settings.access(), settings.redaction
pathlib.Path(".env").write_text("OPENAI_API_KEY=the-second-key")
after = settings.access()
pathlib.Path(".env").write_text("no variable")
print(json.dumps([before.key, after.key, settings.access().key, redaction.text("the-first-key the-second-key"), repr(after)]))
"""


def test_a_verifier_asks_with_the_key_as_it_is_now_and_shows_none_that_was(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=the-first-key")
    looked = subprocess.run(
        [sys.executable, "-c", _REPLACED],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "MODEL_ID": "m"},
        capture_output=True,
        check=True,
    )
    assert json.loads(looked.stdout) == [
        "the-first-key",
        "the-second-key",
        "the-second-key",
        "[redacted] [redacted]",
        "Access(model='m')",
    ]


@pytest.mark.parametrize(
    "environment,model",
    [
        ({}, None),
        ({"OPENAI_API_KEY": "a-key-of-mine"}, None),
        ({"MODEL_ID": "m"}, None),
        ({"DASHSCOPE_API_KEY": "a-key-of-mine", "MODEL_ID": "m"}, "m"),
        ({"OPENAI_API_KEY": "a-key-of-mine", "MODEL_ID": "m", "PERDURE_REVIEW_MODEL": "judge"}, "judge"),
        ({"OPENAI_API_KEY": "a-key-of-mine", "PERDURE_REVIEW_MODEL": "judge"}, "judge"),
    ],
)
def test_a_judge_needs_a_key_and_a_model(environment: dict[str, str], model: str | None) -> None:
    access = VerifierSettings.load("verifier", environment).access()
    assert (access.model if access is not None else None) == model
