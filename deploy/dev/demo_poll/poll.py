"""The poll itself: which places were proposed, who voted for which, and what a page is."""

from collections.abc import Callable

# Votes by place, and the place by voter.
PLACES: dict[str, int] = {}
VOTERS: dict[str, str] = {}

Form = dict[str, str]
# A status, the kind of the content (of a 303: where to go), and the content.
Answer = tuple[int, str, str]
# By method and path.
Routes = dict[tuple[str, str], Callable[[Form], Answer]]
