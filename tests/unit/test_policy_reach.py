"""What calls touch, and which may go on beside each other."""

import pytest

from libs.contracts.tools import Semantics
from libs.policy.reach import EVERYTHING, Reach, alike, collide, paths_of_call, reach_of

READ, WRITE, ONCE = Semantics.READ_ONLY, Semantics.IDEMPOTENT, Semantics.NON_IDEMPOTENT
PATCH = "*** Begin Patch\n*** Update File: ./src//a.py\n*** Move to: b.py\n*** Add File: c\n+x\n*** End Patch"


def test_a_call_names_its_paths_in_one_spelling() -> None:
    assert paths_of_call("read_file", {"path": "./a//b/"}) == ["a/b"]
    assert paths_of_call("apply_patch", {"patch": PATCH}) == ["b.py", "c", "src/a.py"]
    assert paths_of_call("apply_patch", {"patch": "no patch"}) == []
    assert paths_of_call("list_files", {}) == paths_of_call("read_file", {"path": 7}) == []


def test_what_names_no_path_touches_the_whole_workspace_unless_it_needs_none() -> None:
    assert reach_of("run_tests", {}, WRITE, needs_workspace=True).paths == EVERYTHING
    assert reach_of("list_files", {"path": "."}, READ, needs_workspace=True).paths == EVERYTHING
    assert reach_of("search_knowledge", {"query": "x"}, READ, needs_workspace=False).paths == frozenset()


@pytest.mark.parametrize(
    "first,second,expected",
    [
        (("read_file", READ, "a"), ("read_file", READ, "a"), False),
        (("read_file", READ, "a"), ("write_file", WRITE, "a"), True),
        (("write_file", WRITE, "./a"), ("edit_file", WRITE, "a"), True),
        (("write_file", WRITE, "a"), ("write_file", WRITE, "b"), False),
        (("write_file", WRITE, "a"), ("write_file", WRITE, "ab"), False),
        (("write_file", WRITE, "d/a"), ("list_files", READ, "d"), True),
        (("write_file", WRITE, "d/a"), ("list_files", READ, "e"), False),
        (("write_file", WRITE, "d/a"), ("search_text", READ, "."), True),
        (("write_file", WRITE, "caf\u00e9"), ("read_file", READ, "cafe\u0301"), True),
        (("run_command", ONCE, "x"), ("read_file", READ, "y"), True),
    ],
)
def test_order_matters_only_between_a_change_and_what_touches_the_same(
    first: tuple[str, Semantics, str], second: tuple[str, Semantics, str], *, expected: bool
) -> None:
    one, other = (
        reach_of(name, {"path": path}, semantics, needs_workspace=True)
        for name, semantics, path in (first, second)
    )
    assert collide(one, other) is collide(other, one) is expected


def test_what_must_not_be_repeated_is_alone_even_without_a_workspace() -> None:
    alone = Reach(paths=frozenset(), writes=True, alone=True)
    assert collide(alone, Reach(paths=frozenset(), writes=False, alone=False))


def test_what_is_known_of_a_file_is_found_under_the_name_that_its_host_gave_it() -> None:
    files = {"a/b": "1", "caf\u0065\u0301": "2", "other": "3"}
    assert alike(files, paths_of_call("write_file", {"path": "./a//b"})) == {"a/b": "1"}
    assert alike(files, ["caf\u00e9"]) == {"caf\u0065\u0301": "2"}
    both = {**files, "caf\u00e9": "4"}
    assert alike(both, ["caf\u00e9"]) == {"caf\u0065\u0301": "2", "caf\u00e9": "4"}
    assert alike(files, ["Other", "a"]) == alike(files, []) == {}
