"""Anybody may propose a place."""

import poll
from visitor import Visit


class PlacesTest(Visit):
    def test_a_proposed_place_is_there_without_votes(self) -> None:
        assert self.post("/places", place="Noodle bar")[0] == 303
        assert poll.PLACES == {"Noodle bar": 0}

    def test_a_place_has_a_name(self) -> None:
        assert self.post("/places", place=" ")[0] == 400

    def test_proposing_again_keeps_the_votes(self) -> None:
        poll.PLACES["Noodle bar"] = 2
        self.post("/places", place="Noodle bar")
        assert poll.PLACES == {"Noodle bar": 2}
