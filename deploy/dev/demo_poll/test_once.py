"""One vote for each voter."""

import poll
from visitor import Visit


class OnceTest(Visit):
    def test_a_voter_votes_once(self) -> None:
        poll.PLACES.update({"Noodle bar": 0, "Grill": 0})
        assert self.post("/votes", place="Noodle bar", voter="Ada")[0] == 303
        assert self.post("/votes", place="Grill", voter="Ada")[0] == 409
        assert self.post("/votes", place="Grill", voter="Bo")[0] == 303
        assert poll.PLACES == {"Noodle bar": 1, "Grill": 1}
