"""The story of the long demo: a brief for a small web application, and what the scripted model does in each session.

Invariant: the model only says things. Its files are those of `demo_poll/` and the drafts of them; that a draft fails, that a
silent session is noticed and that a broken feature is found again is up to the runtime.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

APP = Path(__file__).with_name("demo_poll")
_DRAFTS = Path(__file__).with_name("demo_drafts")
NAME = "lunch poll"
BRIEF = (
    "A small web application for the question where to have lunch: people propose places, vote for one, and see what "
    "leads. Python's standard library only, no database. What people type must never become markup, and nobody votes "
    "twice."
)
# Inside of a sandbox nobody else listens; without one it has to be a port that is free.
PORT = 8765
# The scripted model answers within a second; a session that is silent for longer than this has stalled.
STALL_S = 8.0
# Nobody waits for this answer: the session is ended long before.
_SILENT_S = 3600.0

_SKELETON = ("README.md", "poll.py", "server.py", "visitor.py")


_BODY: dict[str, object] = {
    "name": NAME,
    "brief": BRIEF,
    "verify": [{"kind": "command", "argv": ["python3", "-B", "server.py", "--check"]}],
    "limits": {"stall_s": STALL_S, "session": {"max_verification_rounds": 1}},
    "unattended": True,
}


class Part(NamedTuple):
    """A feature: what proves it, and after which others."""

    id: str
    title: str
    tests: str | None
    page: str | None = None
    expect_body: str = ""
    depends_on: tuple[str, ...] = ()

    def feature(self, listed: Collection[str], port: int) -> dict[str, object]:
        """As a list names it that has the features `listed`; pages are asked for at `port`."""
        acceptance: list[dict[str, object]] = []
        if self.tests is not None:
            acceptance.append({"kind": "command", "argv": ["python3", "-B", "-m", "unittest", self.tests]})
        if self.page is not None:
            asked = {"start": ["python3", "-B", "server.py", str(port)], "expect_status": 200}
            url = f"http://127.0.0.1:{port}{self.page}"
            acceptance.append({"kind": "http", **asked, "url": url, "expect_body": self.expect_body})
        depends_on = [needed for needed in self.depends_on if needed in listed]
        return {"id": self.id, "title": self.title, "acceptance": acceptance, "depends_on": depends_on}

    @property
    def marker(self) -> str:
        """What only the goal of a session for this feature holds."""
        return f"clean checkout of the workspace:\n\n{self.id}: {self.title}\n"


HOME = Part("home", "The page shows the places and their votes", "test_home", "/", "Where shall we eat")
PLACES = Part("places", "Anybody proposes a place", "test_places", depends_on=("home",))
VOTES = Part("votes", "A vote counts for a proposed place", "test_votes", depends_on=("places",))
RANKING = Part("ranking", "The places in order, as JSON", "test_ranking", "/ranking.json", r"^\[\]$")
NAMES = Part("names", "What people type is shown as text", "test_names", depends_on=("home",))
ONCE = Part("once", "Nobody votes twice", "test_once", depends_on=("votes",))
HEALTH = Part("health", "A page that tells whether the poll is served", None, "/healthz", "^ok$")
RED, SILENT, BROKEN = "a red verification", "a silent session", "a regression"


class Tale(NamedTuple):
    """One way to tell it: the features that have to be there in the end, what goes wrong on the way, and the body of
    `POST /api/projects`."""

    parts: tuple[Part, ...]
    planned: tuple[str, ...]
    body: dict[str, object]


def whole() -> Tale:
    """From an empty folder; the model writes the list."""
    parts = (HOME, PLACES, VOTES, RANKING, NAMES, ONCE, HEALTH)
    return Tale(parts, (RED, SILENT, BROKEN), _BODY)


def short(seed: Path, port: int = PORT) -> Tale:
    """From a poll that has a page and places already, made in the folder `seed`; without the waits before retries."""
    parts = (VOTES, ONCE, RANKING)
    seed.mkdir()
    for name in (*_skeleton(), "home.py", "places.py"):
        (seed / name).write_text(_app(name))
    features = [part.feature([listed.id for listed in parts], port) for part in parts]
    return Tale(parts, (BROKEN,), {**_BODY, "features": features, "workspace": {"seed_dir": str(seed)}})


def script(port: int) -> str:
    """The script for `deploy/dev/model_server.py`."""
    return json.dumps({"conversations": conversations(port)})


def conversations(port: int = PORT) -> list[dict[str, object]]:
    """What the model does in each kind of session; what was tried before comes before the first try."""
    again = "This is attempt"
    return [
        _conversation("This is the first session", _first_session(port)),
        _conversation(
            NAMES.marker,
            _builds(
                NAMES,
                "home.py",
                _app("home.py"),
                "The evidence names the quotation mark; `html.escape` covers it.",
            ),
            again,
        ),
        _conversation(
            VOTES.marker,
            _builds(
                VOTES,
                "votes.py",
                _app("votes.py"),
                "The check of the place got lost with the voters; it is back.",
            ),
            "It was committed before and broke",
        ),
        _conversation(HEALTH.marker, _builds(HEALTH, "health.py", _app("health.py")), again),
        _conversation(HEALTH.marker, [_reads(HEALTH), {"delay_s": _SILENT_S}]),
        _conversation(HOME.marker, _builds(HOME, "home.py", _draft("home_unescaped"))),
        _conversation(PLACES.marker, _builds(PLACES, "places.py", _app("places.py"))),
        _conversation(VOTES.marker, _builds(VOTES, "votes.py", _draft("votes_without_voters"))),
        _conversation(RANKING.marker, _builds(RANKING, "ranking.py", _app("ranking.py"))),
        _conversation(NAMES.marker, _builds(NAMES, "home.py", _draft("home_half_escaped"))),
        _conversation(ONCE.marker, _builds(ONCE, "votes.py", _draft("votes_for_anything"))),
    ]


def finished() -> dict[str, str]:
    """The files of the application as they have to be in the end."""
    return {path.name: path.read_text() for path in APP.iterdir() if path.is_file()}


def _first_session(port: int) -> list[dict[str, object]]:
    """The skeleton and all tests, so that later sessions cannot bend what they are measured by; then the list."""
    parts = whole().parts
    return [
        _turn(
            "I write the skeleton and what each feature is measured by.",
            *(_call("write_file", path=name, content=_app(name)) for name in _skeleton()),
        ),
        _turn(
            "Now the list.",
            _call(
                "write_features",
                features=[part.feature([listed.id for listed in parts], port) for part in parts],
            ),
            _call(
                "write_handoff",
                done=["The skeleton and the tests of all features"],
                next=["home"],
                decisions=["Each page is a module with ROUTES, named in server.PAGES"],
                how_to_verify=["python3 -B -m unittest"],
            ),
        ),
        _turn("The list is written; every feature has a check of its own."),
    ]


def _skeleton() -> list[str]:
    return [*_SKELETON, *sorted(path.name for path in APP.glob("test_*.py"))]


def _builds(part: Part, path: str, content: str, said: str = "") -> list[dict[str, object]]:
    handoff = _call("write_handoff", done=[part.title], next=["The next feature of the list"])
    return [
        _reads(part),
        _turn(said or "I know what is wanted.", _call("write_file", path=path, content=content), handoff),
        _turn(f"{part.title}: done."),
    ]


def _reads(part: Part) -> dict[str, object]:
    return _turn("What is it measured by?", _call("read_file", path=f"{part.tests or 'test_home'}.py"))


def _app(name: str) -> str:
    return (APP / name).read_text()


def _draft(name: str) -> str:
    """A page as it is before it is right."""
    return (_DRAFTS / f"{name}.txt").read_text()


def _conversation(marker: str, turns: list[dict[str, object]], *also: str) -> dict[str, object]:
    return {"marker": marker, "also": list(also), "turns": turns}


def _turn(text: str, *calls: dict[str, object]) -> dict[str, object]:
    """An answer that comes word by word, so that there is something to stream."""
    return {"text": [word + " " for word in text.split()], "calls": list(calls), "chunk_delay_s": 0.01}


def _call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}
