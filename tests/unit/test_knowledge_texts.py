"""Fusion, terms and chunks: what holds for every ranking and every text."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.toolhost.knowledge.chunks import CHUNK_CHARS_MAX, OVERLAP_CHARS, Chunk, chunks_of
from services.toolhost.knowledge.fusion import K, fused
from services.toolhost.knowledge.terms import terms

RANKINGS = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=4)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["", " ", "# One", "## Two", "### Three ###", "```", "~~~~", "#no", "a\r"]),
        st.text(alphabet="ab é字\t", max_size=40),
        st.integers(1, 4000).map(lambda length: "x" * length),
    ),
    max_size=60,
).map("\n".join)


# --- Fusion ---


@given(RANKINGS, st.integers())
def test_neither_the_order_of_the_rankings_nor_doubles_change_the_result(
    rankings: list[list[str]], seed: int
) -> None:
    def said(lists: list[list[str]]) -> list[tuple[str, float]]:
        return [(one.item, one.score) for one in fused(lists)]

    shuffled = random.Random(seed).sample(rankings, len(rankings))
    doubled = [ranking + ranking for ranking in shuffled]
    assert said(rankings) == said(shuffled) == said(doubled)
    assert {item for item, _ in said(rankings)} == {item for ranking in rankings for item in ranking}


@given(RANKINGS, st.data())
def test_an_item_that_one_ranking_puts_higher_does_not_fall(
    rankings: list[list[str]], data: st.DataObject
) -> None:
    movable = [(which, at) for which, ranking in enumerate(rankings) for at in range(1, len(ranking))]
    if not movable:
        return
    which, at = data.draw(st.sampled_from(movable))
    item = rankings[which][at]
    raised = [list(ranking) for ranking in rankings]
    raised[which].insert(data.draw(st.integers(0, at - 1)), raised[which].pop(at))
    before = [one.item for one in fused(rankings)].index(item)
    assert [one.item for one in fused(raised)].index(item) <= before


@given(RANKINGS)
def test_scores_are_those_of_the_ranks_and_ties_are_broken_the_same_way_always(
    rankings: list[list[str]],
) -> None:
    found = fused(rankings)
    for one in found:
        assert one.ranks == tuple(
            ranking.index(one.item) + 1 if one.item in ranking else None for ranking in rankings
        )
        assert abs(one.score - sum(1 / (K + rank) for rank in one.ranks if rank)) < 1e-12
    for better, worse in pairwise(found):
        assert (-better.score, better.best, better.item) < (-worse.score, worse.best, worse.item)


# --- Terms ---


def test_names_are_found_whole_and_by_their_parts_and_scripts_without_spaces_by_their_characters() -> None:
    assert list(terms("parseHTMLFile_v2")) == ["parsehtmlfile_v2", "parse", "html", "file", "v", "2"]
    assert list(terms("Crème brûlée!")) == ["creme", "brulee"]
    assert list(terms("全文検索 x")) == ["全", "文", "検", "索", "全文", "文検", "検索", "x"]
    assert list(terms('"(*:^~ -')) == []


# --- Chunks ---


@given(TEXTS, st.sampled_from(["d/a.md", "d/a.py"]))
def test_every_line_is_in_a_chunk_and_a_chunk_is_what_stands_in_its_lines(text: str, path: str) -> None:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    chunks = list(chunks_of("local", path, text))
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    covered: set[int] = set()
    for chunk in chunks:
        assert 0 < len(chunk.text) <= CHUNK_CHARS_MAX
        whole = "\n".join(lines[chunk.first_line - 1 : chunk.last_line])
        assert chunk.text in whole
        assert chunk.text.count("\n") == chunk.last_line - chunk.first_line
        covered.update(range(chunk.first_line, chunk.last_line + 1))
    headings = {number for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
    wanted = {number for number, line in enumerate(lines, 1) if line.strip()}
    assert wanted - covered <= (headings if path.endswith("md") else set())


def numbered(first: int, last: int) -> str:
    return "\n".join(f"line {number} says something of its own" for number in range(first, last + 1))


def test_chunks_overlap_a_little_and_each_has_something_new() -> None:
    chunks = list(chunks_of("local", "d/a.txt", numbered(1, 200)))
    assert len(chunks) > 3
    for one, other in pairwise(chunks):
        shared = one.last_line - other.first_line + 1
        assert 0 < shared <= OVERLAP_CHARS // 30
        assert other.last_line > one.last_line


def test_markdown_is_cut_at_its_headings_and_says_what_it_is_under() -> None:
    text = "intro\n\n# Guide\n\n## Install\nrun it\n```\n# no heading\n```\n## Use ##\nuse it\n# Other\nend\n"
    assert [(c.title, c.first_line, c.last_line) for c in chunks_of("local", "d/a.md", text)] == [
        ("", 1, 1),
        ("Guide > Install", 5, 9),
        ("Guide > Use", 10, 11),
        ("Other", 12, 13),
    ]
    assert [c.title for c in chunks_of("local", "d/a.md", "# Only a title\n")] == ["Only a title"]


def test_a_chunk_keeps_its_id_when_it_moves_and_has_another_elsewhere() -> None:
    def ids(tenant: str, path: str, text: str) -> set[str]:
        return {chunk.id for chunk in chunks_of(tenant, path, text)}

    text = f"# One\n{numbered(1, 20)}\n# Two\nsame\n# Two\nsame\n"
    before = ids("local", "d/a.md", text)
    assert len(before) == 3
    assert before < ids("local", "d/a.md", "# Zero\nnew\n" + text)
    assert not before & ids("other", "d/a.md", text)
    assert not before & ids("local", "d/b.md", text)


def test_a_line_that_is_too_long_is_found_in_parts_under_one_number() -> None:
    chunks: list[Chunk] = list(chunks_of("local", "d/a.js", "a\n" + "x" * 4000 + "\nb"))
    assert sum(len(chunk.text) for chunk in chunks) >= 4000
    assert {chunk.first_line for chunk in chunks} <= {1, 2}
    assert chunks[-1].last_line == 3
