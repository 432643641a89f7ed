"""The page shows the question and what was proposed."""

import poll
from visitor import Visit


class HomeTest(Visit):
    def test_the_page_asks_the_question(self) -> None:
        status, page = self.get("/")
        assert (status, "<h1>Where shall we eat?</h1>" in page) == (200, True), page

    def test_each_place_is_shown_with_its_votes(self) -> None:
        poll.PLACES["Noodle bar"] = 3
        assert "<li>Noodle bar: 3</li>" in self.get("/")[1]
