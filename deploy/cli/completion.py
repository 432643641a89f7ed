"""`perdure completion SHELL`: a script that completes commands, options and choices in bash, zsh or fish.

Invariant: what is completed is read from the parser itself, so a new command or option is completed without a word here.
Install it with `source <(perdure completion bash)`, or `perdure completion fish | source`.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator
from typing import NamedTuple, cast

from deploy.cli.outcome import Exit

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
_perdure() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" place=perdure words="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$place $word" in
            {places}) place="$place $word" ;;
        esac
    done
    case "$place" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _perdure perdure
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
_FISH = """\
function __perdure_words
    set -l place perdure
    for word in (commandline -opc)[2..]
        switch "$place $word"
            case {places}
                set place "$place $word"
        end
    end
    switch "$place"
{cases}
    end
end
complete -c perdure -a '(__perdure_words)'
"""


class _Place(NamedTuple):
    """A command as it is written, and what may stand behind it."""

    name: str
    words: list[str]


def main(args: argparse.Namespace) -> Exit:
    """Write the script. `args.root` is the parser of all commands."""
    sys.stdout.write(script(args.shell, args.root))
    return Exit.DONE


def script(shell: str, root: argparse.ArgumentParser) -> str:
    """The script of one of `SHELLS`."""
    places = list(_places("perdure", root))
    names = [shlex.quote(place.name) for place in places[1:]]
    if shell == "fish":
        cases = [
            f"        case {shlex.quote(place.name)}\n            printf '%s\\n' {' '.join(place.words)}"
            for place in places
        ]
        return _FISH.format(places=" ".join(names), cases="\n".join(cases))
    cases = [
        f"        {shlex.quote(place.name)}) words={shlex.quote(' '.join(place.words))} ;;"
        for place in places
    ]
    text = _BASH.format(places="|".join(names), cases="\n".join(cases))
    return _ZSH + text if shell == "zsh" else text


def _places(name: str, command: argparse.ArgumentParser) -> Iterator[_Place]:
    """The command and all below it."""
    words: list[str] = []
    below: list[_Place] = []
    for action in command._actions:  # noqa: SLF001 the parser says nowhere else what it takes
        words += [option for option in action.option_strings if option.startswith("--")]
        if isinstance(action.choices, dict):
            commands = cast("dict[str, argparse.ArgumentParser]", action.choices)
            for called, sub in commands.items():
                words.append(called)
                below += _places(f"{name} {called}", sub)
        elif action.choices is not None:
            words += [str(choice) for choice in action.choices]
    yield _Place(name, words)
    yield from below
