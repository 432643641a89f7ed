"""The command line: what parses, what is refused, and how a directory becomes a workspace."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.cli.__main__ import parser
from deploy.cli.acceptance import argv_of
from deploy.cli.gateway import url_of
from deploy.cli.outcome import Exit, of_status
from deploy.cli.run import task_of
from deploy.cli.run_arguments import STATUSES
from deploy.cli.workspaces import is_directory, link, root_of, tenant_of, workspace_name
from libs.contracts.errors import ConfigurationError, ValidationFailed
from libs.contracts.run import RunStatus
from services.toolhost.workspace import place_of


def test_help_imports_neither_services_nor_vendors() -> None:
    code = (
        "import sys\n"
        "from deploy.cli.__main__ import parser\n"
        "parser().format_help()\n"
        "heavy = {'pydantic', 'msgspec', 'httpx', 'nats', 'uvloop', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_status_can_be_asked_for() -> None:
    assert set(STATUSES) == {status.value for status in RunStatus}


@pytest.mark.parametrize(
    "line",
    [
        *("", "serve nobody", "run", "runs show", "runs list --limit 0", "up --port x"),
        *(
            "runs approve RUN",
            "runs reconcile RUN CALL",
            "runs reconcile RUN CALL perhaps",
            "runs message RUN",
        ),
        *(
            "runs delete",
            "dead",
            "dead replay",
            "dead list --limit x",
            "doctor now",
            "knowledge",
            "knowledge search",
        ),
    ],
)
def test_a_command_that_cannot_be_meant_exits_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(line.split())
    assert ended.value.code == Exit.USAGE
    assert "usage: perdure" in capsys.readouterr().err


def test_accept_may_be_repeated() -> None:
    args = parser().parse_args(["run", "Do it.", "--accept", "make test", "--accept", "true"])
    assert args.accept == ["make test", "true"]


@pytest.mark.parametrize(
    "command,argv",
    [
        ("python3 -m pytest -k 'a and b'", ["python3", "-m", "pytest", "-k", "a and b"]),
        ("grep -q a=b file", ["grep", "-q", "a=b", "file"]),
        *(
            (command, ["sh", "-c", command])
            for command in (
                "true && false",
                "a | b",
                "x > y",
                "echo $HOME",
                "ls *.py",
                "A=1 make test",
                "a\nb",
                "! a",
            )
        ),
    ],
)
def test_an_acceptance_with_shell_syntax_goes_to_a_shell_whole(command: str, argv: list[str]) -> None:
    assert argv_of(command) == argv


@pytest.mark.parametrize("command", ["", "  ", "''", "echo 'open"])
def test_an_acceptance_that_cannot_be_meant_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match="--accept"):
        argv_of(command)


@pytest.mark.parametrize("words", [["  "], [""], ["Go.", "--workspace", ""], ["Go.", "--workspace", " "]])
def test_what_is_blank_is_refused_and_never_means_this_directory(words: list[str]) -> None:
    with pytest.raises(ValidationFailed, match="is blank; say what is meant"):
        task_of(parser().parse_args(["run", *words]))


def test_a_goal_without_its_quotes_is_told_to_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["run", "hi", "hello"])
    assert ended.value.code == Exit.USAGE
    assert 'quote the goal: perdure run "hi hello"' in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"perdure {version('perdure')}\n")


@pytest.mark.parametrize(
    "known,url",
    [
        ({}, "http://127.0.0.1:8000"),
        ({"PERDURE_PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"PERDURE_PORT": "9000", "PERDURE_HOST": "0.0.0.0"}, "http://127.0.0.1:9000"),
        ({"PERDURE_PORT": "9000", "PERDURE_HOST": "::1"}, "http://[::1]:9000"),
        ({"PERDURE_PORT": "9000", "PERDURE_URL": "https://perdure.example"}, "https://perdure.example"),
        ({"PERDURE_PORT": "0"}, "http://127.0.0.1:8000"),
    ],
)
def test_the_gateway_is_found_where_it_was_told_to_listen(known: dict[str, str], url: str) -> None:
    assert url_of(known) == url


def test_the_tenant_is_known_by_its_secret_or_not_at_all() -> None:
    keys = {"RUNTIME_API_KEYS_JSON": '{"alpha": ["alpha-secret-0123456789", "alpha-secret-abcdefghij"]}'}
    assert tenant_of({**keys, "PERDURE_TOKEN": "alpha-secret-abcdefghij"}) == "alpha"
    for unknown in (
        {},
        keys,
        {**keys, "PERDURE_TOKEN": "other"},
        {"PERDURE_TOKEN": "alpha-secret-abcdefghij"},
    ):
        with pytest.raises(ConfigurationError, match="which is yours"):
            tenant_of(unknown)


def test_a_tenant_s_directory_is_linked_where_its_tool_host_looks(tmp_path: Path) -> None:
    project, root = tmp_path / "project", tmp_path / "data" / "workspaces"
    project.mkdir()
    root.parent.mkdir()
    name = link(project, root, tenant="alpha")
    assert place_of(root, name, tenant="alpha").directory.resolve() == project


@pytest.mark.parametrize(
    "status,code",
    [
        ("COMPLETED", Exit.DONE),
        ("FAILED", Exit.FAILED),
        ("CANCELLED", Exit.INTERRUPTED),
        ("WAITING_FOR_INPUT", Exit.PERSON),
        ("RECONCILIATION_REQUIRED", Exit.PERSON),
        ("RUNNING", None),
    ],
)
def test_the_exit_code_is_the_outcome_of_the_run(status: str, code: Exit | None) -> None:
    assert of_status(status) is code


def test_a_directory_becomes_one_workspace_however_often_it_is_given(tmp_path: Path) -> None:
    project, root = tmp_path / "my project", tmp_path / "data" / "workspaces"
    project.mkdir()
    root.parent.mkdir()
    name = link(project, root)
    assert link(project / ".." / project.name, root) == name
    assert (root / name).resolve() == project
    assert name.startswith("my_project-")


def test_directories_of_one_name_are_two_workspaces() -> None:
    assert workspace_name(Path("/a/shop")) != workspace_name(Path("/b/shop"))


def test_a_directory_around_the_data_folder_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "data" / "workspaces"
    root.parent.mkdir()
    with pytest.raises(ConfigurationError, match="holds the data of Perdure itself"):
        link(tmp_path, root)


def test_an_entry_that_somebody_else_made_is_not_taken_over(tmp_path: Path) -> None:
    project, root = tmp_path / "project", tmp_path / "data" / "workspaces"
    project.mkdir()
    (root / workspace_name(project)).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="is not a link to"):
        link(project, root)


def test_a_missing_directory_and_a_missing_data_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no directory"):
        link(tmp_path / "nothing", tmp_path / "data" / "workspaces")
    (tmp_path / "project").mkdir()
    with pytest.raises(ConfigurationError, match="there is no data folder"):
        link(tmp_path / "project", tmp_path / "data" / "workspaces")


def test_a_plain_name_is_no_directory_unless_one_has_it(tmp_path: Path) -> None:
    assert not is_directory("shop")
    assert is_directory("./shop")
    assert is_directory(str(tmp_path))


def test_the_root_of_workspaces_follows_the_settings_of_the_services() -> None:
    assert root_of({}) == Path(".perdure/workspaces")
    assert root_of({"PERDURE_DATA": "/d"}) == Path("/d/workspaces")
    assert root_of({"PERDURE_DATA": "/d", "WORKSPACE_DIR": "/w"}) == Path("/w")
