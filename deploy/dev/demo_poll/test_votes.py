"""A vote counts for a place that was proposed."""

import poll
from visitor import Visit


class VotesTest(Visit):
    def test_a_vote_counts(self) -> None:
        poll.PLACES["Noodle bar"] = 1
        assert self.post("/votes", place="Noodle bar")[0] == 303
        assert poll.PLACES == {"Noodle bar": 2}

    def test_nobody_votes_for_a_place_that_nobody_proposed(self) -> None:
        assert self.post("/votes", place="Moon bar")[0] == 404, "a vote made a place"
        assert poll.PLACES == {}, "a vote made a place"
