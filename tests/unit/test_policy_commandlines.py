"""Shell lines: every command is seen, wherever it hides, and what is not understood is never allowed."""

import pytest

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.commandlines import NotUnderstood, commands_of
from libs.policy.decision import Decision, decide
from libs.policy.rules import Mode, Policy, Rule, Verb

SPEC = ToolSpec(
    name="run_command", description="", parameters={}, semantics=Semantics.NON_IDEMPOTENT, risk="high"
)
ALLOWED = (
    "git status *",
    "git log *",
    "git diff *",
    "ls *",
    "cat *",
    "grep *",
    "wc *",
    "echo *",
    "make test",
    "diff *",
)
FORBIDDEN = ("rm *", "git push *", "> /etc/*")
RULES = (
    *(Rule(verb=Verb.ALLOW, command=pattern, reason="known") for pattern in ALLOWED),
    *(Rule(verb=Verb.DENY, command=pattern, reason="forbidden") for pattern in FORBIDDEN),
)


def decision(line: str, *more: Rule, mode: Mode = Mode.TRUSTED) -> Decision:
    return decide(SPEC, {"command": line}, tenant="local", policy=Policy(mode=mode, rules=(*RULES, *more)))


@pytest.mark.parametrize(
    "line",
    [
        "git status",
        "git status --short",
        "ls",
        "ls -la | grep x | wc -l",
        "git log --oneline && git diff; ls",
        "ls || echo none",
        "(ls; git log)",
        "{ ls; echo x; }",
        "! grep -q x a.txt",
        "if ls a; then echo yes; elif ls b; then echo no; else echo x; fi",
        "for x in 1 2; do echo $x; done",
        "while grep -q x a; do echo y; done",
        "case $x in a) ls;; *) echo b;; esac",
        "echo $(git status) `ls`",
        'echo "now: $(git status)"',
        "diff <(ls a) <(ls b)",
        "ls 2>/dev/null >&2",
        "cat < a.txt",
        "git 'log' \"--oneline\"",
        "l's' -l",
        "git \\\n  status",
        "ls # and rm -rf /",
        "echo 'rm -rf /; $(rm x)'",
        "ls *.py ~/x $HOME",
        "make test",
        "ls &",
        "echo naïve 日本",
    ],
)
def test_a_line_is_allowed_when_each_of_its_commands_is(line: str) -> None:
    assert decision(line).verb is Verb.ALLOW, decision(line).reason


@pytest.mark.parametrize(
    "line",
    [
        "git commit -m x",
        "ls; curl example.com",
        "ls | tee a",
        "ls && make install",
        "make test x",
        "echo $(curl x)",
        "echo `curl x`",
        'echo "$(curl x)"',
        "cat <(curl x)",
        "ls ${x:-$(curl x)}",
        "echo $((a[$(curl x)]))",
        "for x in $(curl x); do echo $x; done",
        "case $(curl x) in a) ls;; esac",
        "for PATH in /tmp/x; do ls; done",
        "ls() { curl x; }; ls",
        "PATH=/tmp/x ls",
        "X=1 ls",
        "X=1",
        "export PATH=/tmp/x; ls",
        "alias ls=curl; ls",
        "cat <<EOF\n$(curl x)\nEOF",
        "cat <<< $(curl x)",
        "$x",
        "$(echo curl) x",
        "l$x",
        "git $x",
        "git {status,commit}",
        "./git status",
        "/tmp/ls",
        "echo x > a.txt",
        "echo x >> a.txt",
        "ls &> a.txt",
        "cat a.txt >| $x",
        "echo $'\\x63url'",
        "[[ 'a[$(curl x)]' -eq 1 ]] && ls",
        "[ -v 'a[$(curl x)]' ]",
        "((a=1))",
        "ls |",
        "ls 'x",
        "if ls",
        "",
        "# nothing",
        "git\u00a0status",
        "ls\u200b",
        "ls\rcurl x",
        "ls \0",
        "coproc ls",
        "time ls",
        "ls " + "x" * 30_000,
        "$(" * 200 + "ls" + ")" * 200,
    ],
)
def test_anything_else_is_asked_about(line: str) -> None:
    # What may be forbidden is denied instead, so nothing is here.
    policy = Policy(rules=tuple(rule for rule in RULES if rule.verb is not Verb.DENY))
    assert decide(SPEC, {"command": line}, tenant="local", policy=policy).verb is Verb.ASK, commands_of(line)


@pytest.mark.parametrize(
    "program",
    [
        "sh -c ls", "bash -c ls", "/bin/bash x", "env ls", "xargs ls", "python3 -c x", "python3.11 x", "perl -e x",
        "node -e x", "eval ls", "exec ls", "source a", ". a", "command ls", "sudo ls", "nohup ls", "timeout 1 ls",
        "find . -exec ls {} +", "awk x", "sed x", "busybox ls", "setsid ls", "nice ls", "watch ls", "trap ls EXIT",
        "ssh host ls", "docker run x", "builtin ls", "printf -v x y", "cd /tmp",
    ],
)  # fmt: skip
def test_no_rule_allows_a_program_that_runs_what_it_is_told(program: str) -> None:
    everything = Rule(verb=Verb.ALLOW, command="* *", reason="all")
    exactly = Rule(verb=Verb.ALLOW, command=program, reason="this")
    assert decision(program, everything, exactly).verb is Verb.ASK
    assert decision(f"ls | {program}", everything, exactly).verb is Verb.ASK


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf x",
        "ls; rm x",
        "ls | rm x",
        "echo $(rm x)",
        "curl x; rm x",
        "/bin/rm x",
        "r\\m x",
        "'rm' x",
        "rm $x",
        "$x y",
        "git push",
        "git push origin main",
        "git $x",
        "(while ls; do rm x; done)",
        "echo x > /etc/passwd",
        "echo x > $y",
    ],
)
def test_what_is_or_may_be_forbidden_is_denied_whatever_else_is_allowed(line: str) -> None:
    everything = Rule(verb=Verb.ALLOW, command="*", reason="all")
    only = (everything, *(rule for rule in RULES if rule.verb is Verb.DENY))
    found = decide(SPEC, {"command": line}, tenant="local", policy=Policy(rules=only))
    assert found == Decision(verb=Verb.DENY, reason="forbidden")


def test_rules_about_the_whole_tool_stand_beside_those_about_commands() -> None:
    assert decision("ls", Rule(verb=Verb.DENY, tool="run_*", reason="closed")).reason == "closed"
    assert decision("ls", Rule(verb=Verb.ASK, tenant="local", reason="look")).reason == "look"
    assert decision("ls", Rule(verb=Verb.ASK, command="ls *", reason="this, too")).reason == "this, too"
    assert decision("curl x", Rule(verb=Verb.ALLOW, tool="run_*", reason="open")).reason == "open"
    assert decision("rm x", Rule(verb=Verb.ALLOW, tool="run_*", reason="open")).reason == "forbidden"
    assert decision("ls '", Rule(verb=Verb.ALLOW, tool="run_*", reason="open")).verb is Verb.ASK
    assert decision("ls", mode=Mode.READ_ONLY).verb is Verb.DENY
    other = Policy(rules=(Rule(verb=Verb.ALLOW, command="ls *", tenant="acme", reason="known"),))
    assert decide(SPEC, {"command": "ls"}, tenant="acme", policy=other).verb is Verb.ALLOW
    assert decide(SPEC, {"command": "ls"}, tenant="local", policy=other).verb is Verb.ASK
    assert decide(SPEC, {"command": 1}, tenant="acme", policy=other).verb is Verb.ASK


def test_the_reason_names_the_command_that_is_not_allowed() -> None:
    assert decision("ls && curl 'a b' $x").reason == "no rule allows `curl a b …`"
    assert decision("ls | xargs rm").reason == "`xargs rm` may run anything"
    assert "not complete" in decision("ls '").reason


def test_quotes_are_gone_and_the_unknown_is_marked() -> None:
    read = commands_of('a \'b c\' "d$e" f\\ g h*i "j\\"k" > l')
    assert not isinstance(read, NotUnderstood)
    assert sorted(command.words for command in read if command.words[0] == ">") == [(">", "l")]
    assert [command.words for command in read if command.words[0] == "a"] == [
        ("a", "b c", None, "f g", None, 'j"k')
    ]
