"""What a shell line would run, read from its syntax tree: the commands that rules are held against. PURE.

Invariant: the reading errs on one side. A line of which every form is understood gives all the commands that it can
run, in pipes, lists, loops, substitutions and subshells; anything else gives the reason why it is not understood, and
then no rule allows it. What is not text in the line (variables, patterns, substitutions) stands as `None` and matches
only where a rule leaves everything open.

The grammar is tree-sitter's, which reads more than any shell runs; a list of known forms decides, not the absence of an
error.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

# A longer line is a program, and nobody has written rules for a program.
LINE_CHARS_MAX = 20_000
# Deeper lines are made to confuse, and end a recursive reading.
_DEPTH_MAX = 60

# Programs that run what their arguments or their input say. A rule for them would be one for everything.
_INTERPRETERS = re.compile(
    r"(?:ba|da|a|z|k|c|tc|fi|mk)?sh|busybox|toybox|env|xargs|parallel|eval|exec|source|\.|command|builtin|coproc|time|nice"
    r"|ionice|nohup|setsid|timeout|stdbuf|script|sudo|su|doas|runuser|chroot|unshare|nsenter|flock|watch|trap|alias|enable"
    r"|strace|ltrace|gdb|bwrap|docker|podman|ssh|find|fd|awk|gawk|mawk|nawk|sed|gsed|ed|ex|vi|vim|emacs|nano|less|more|man"
    r"|python[\d.]*|pypy[\d.]*|perl[\d.]*|ruby[\d.]*|node|nodejs|deno|bun|php[\d.]*|lua[\d.]*|tclsh|wish|expect|java|jshell"
    r"|groovy|scala|kotlin|Rscript|R|julia|ghci|runghc|osascript|pwsh|powershell|npx|uvx|pipx|ipython[\d.]*|bc|dc|m4|gcc|tar"
    r"|mapfile|readarray|test|\[|\[\[|cd|pushd|popd|let|compgen|complete|bind|hash|set|shopt|export|declare|typeset|local|readonly|unset|printf|read"
)
# Forms that only hold other commands together.
_STRUCTURES = frozenset(
    {
        "program", "list", "pipeline", "subshell", "compound_statement", "negated_command", "if_statement",
        "elif_clause", "else_clause", "while_statement", "for_statement", "do_group", "case_statement", "case_item",
        "redirected_statement", "comment", "command_substitution", "process_substitution",
    }
)  # fmt: skip
# Values, whose text a shell may change: they stand as `None`, and what is substituted in them is read.
_OPEN_VALUES = frozenset({"simple_expansion", "expansion", "command_substitution", "process_substitution"})
_PLAIN_VALUES = frozenset(
    {"word", "number", "raw_string", "string", "concatenation", "variable_name", "extglob_pattern"}
)
_CHANGED_BY_SHELLS = re.compile(r"[*?\[\]{}~$`]")
# What stands for a program where the shell itself opens a file.
READS, WRITES = "<", ">"
_HARMLESS_TARGETS = frozenset({"/dev/null"})
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_STRINGS = re.compile(r"\\([$`\"\\\n])")

_parser = Parser(Language(tree_sitter_bash.language()))


class ShellCommand(msgspec.Struct, frozen=True):
    """One simple command: the program and its arguments as they are after quoting; `None` is only known when it runs."""

    words: tuple[str | None, ...]

    @property
    def text(self) -> str:
        return " ".join("…" if word is None else word for word in self.words)


class NotUnderstood(msgspec.Struct, frozen=True):
    reason: str


class _Unknown(Exception):
    """A form that is not understood."""


def commands_of(line: str) -> tuple[ShellCommand, ...] | NotUnderstood:
    """All the commands that the line can run, or why they cannot be told."""
    if len(line) > LINE_CHARS_MAX:
        return NotUnderstood("the line is too long to be judged by rules")
    # Parser and shell need not agree about which of these part two words.
    if any(not char.isprintable() and char not in "\n\t" for char in line):
        return NotUnderstood("the line holds characters that cannot be seen")
    root = _parser.parse(line.encode("utf-8", "surrogatepass")).root_node
    if root.has_error:
        return NotUnderstood("the line is not complete")
    try:
        found = tuple(_read(root, 0))
    except _Unknown as unknown:
        return NotUnderstood(f"{unknown}")
    return found or NotUnderstood("the line runs nothing")


def is_interpreter(command: ShellCommand) -> bool:
    """Whether the program runs what it is told, so that no rule for it says anything about what happens."""
    program = command.words[0]
    return program is None or _INTERPRETERS.fullmatch(program.rpartition("/")[2]) is not None


def fits(command: ShellCommand, pattern: str) -> bool:
    """Whether the command is one of those the pattern names: words, each a shell pattern; `*` as the last word stands
    for any further ones, and only it does for what is not known before the command runs."""
    wanted = pattern.split()
    words = command.words
    if wanted[-1:] == ["*"]:
        wanted = wanted[:-1]
        words = words[: len(wanted)]
    return len(words) == len(wanted) and all(
        word is not None and fnmatchcase(word, glob) for word, glob in zip(words, wanted, strict=True)
    )


def may_fit(command: ShellCommand, pattern: str) -> bool:
    """Whether the command could be one of those: for what is forbidden, the unknown counts as known."""
    wanted = pattern.split()
    open_end = wanted[-1:] == ["*"]
    wanted = wanted[:-1] if open_end else wanted
    words = command.words
    if words[0] is not None and "/" not in pattern.partition(" ")[0]:
        words = (words[0].rpartition("/")[2], *words[1:])
    if None in words:
        # One unknown may be none or many words when it runs.
        known = words[: words.index(None)]
        return all(fnmatchcase(word or "", glob) for word, glob in zip(known, wanted, strict=False))
    words = words[: len(wanted)] if open_end else words
    return len(words) == len(wanted) and all(
        fnmatchcase(word or "", glob) for word, glob in zip(words, wanted, strict=True)
    )


def _read(node: Node, depth: int) -> Iterator[ShellCommand]:
    if depth > _DEPTH_MAX:
        raise _Unknown("the line is too deeply nested")
    if node.type == "command":
        yield from _command(node, depth)
    elif node.type == "file_redirect":
        yield from _redirect(node, depth)
    elif node.type == "for_statement" and not _is_harmless_name(node.child_by_field_name("variable")):
        raise _Unknown("the line has a loop over a variable that programs may look at")
    elif node.type in _STRUCTURES:
        for child in node.named_children:
            yield from _read(child, depth + 1)
    elif node.type in _PLAIN_VALUES or node.type in _OPEN_VALUES:
        # The values of a loop or a case.
        yield from _inside(node, depth)
    else:
        raise _Unknown(f"the line has a form that no rule is made for ({node.type.replace('_', ' ')})")


def _is_harmless_name(node: Node | None) -> bool:
    """What shells and programs look at is written in capitals."""
    return node is not None and (node.text or b"").decode("utf-8", "replace").islower()


def _command(node: Node, depth: int) -> Iterator[ShellCommand]:
    words: list[str | None] = []
    for child in node.named_children:
        if child.type == "command_name":
            words.append(_word(child.named_children[0]))
        elif child.type in _PLAIN_VALUES or child.type in _OPEN_VALUES:
            words.append(_word(child))
        elif child.type == "file_redirect":
            pass
        else:
            # Assignments change which program a name means; here-documents are read wrongly too easily.
            raise _Unknown(f"the line has a form that no rule is made for ({child.type.replace('_', ' ')})")
        yield from _redirect(child, depth) if child.type == "file_redirect" else _inside(child, depth)
    yield ShellCommand(tuple(words))


def _redirect(node: Node, depth: int) -> Iterator[ShellCommand]:
    """Reading and writing of files by the shell itself counts as the commands `<` and `>`."""
    target = node.child_by_field_name("destination")
    operator = next((child.type for child in node.children if not child.is_named), "")
    if target is None:
        raise _Unknown("the line has a redirection without a target")
    yield from _inside(target, depth)
    name = _word(target)
    if operator in (">&", "<&") and name is not None and (name.isdigit() or name == "-"):
        return
    if name not in _HARMLESS_TARGETS:
        yield ShellCommand((READS if operator == READS else WRITES, name))


def _inside(node: Node, depth: int) -> Iterator[ShellCommand]:
    """The commands that are substituted somewhere in a value."""
    if depth > _DEPTH_MAX:
        raise _Unknown("the line is too deeply nested")
    if node.type in ("command_substitution", "process_substitution"):
        yield from _read(node, depth + 1)
        return
    if node.type in ("arithmetic_expansion", "ansi_c_string", "translated_string", "subscript", "array"):
        # Arithmetic runs what stands in an index; the other strings have escapes of their own.
        raise _Unknown(f"the line has a form that no rule is made for ({node.type.replace('_', ' ')})")
    for child in node.named_children:
        yield from _inside(child, depth + 1)


def _word(node: Node) -> str | None:
    """The text of a value once its quotes are gone; `None` where a shell puts something else."""
    text = (node.text or b"").decode("utf-8", "surrogateescape")
    match node.type:
        case "raw_string":
            return text[1:-1]
        case "string":
            inner = text[1:-1]
            if any(child.type != "string_content" for child in node.named_children) or "`" in inner:
                return None
            return _ESCAPED_IN_STRINGS.sub(lambda found: "" if found[1] == "\n" else found[1], inner)
        case "concatenation":
            parts = [_word(child) for child in node.children]
            return None if None in parts else "".join(part or "" for part in parts)
        case "word" | "number" | "{" | "}":
            if _CHANGED_BY_SHELLS.search(_ESCAPED.sub("", text)):
                return None
            return _ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[1], text)
        case _:
            return None
