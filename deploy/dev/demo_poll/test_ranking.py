"""The place that leads comes first."""

import json

import poll
from visitor import Visit


class RankingTest(Visit):
    def test_votes_decide_then_names(self) -> None:
        poll.PLACES.update({"Grill": 1, "Noodle bar": 2, "Cafe": 1})
        ranked = [row["place"] for row in json.loads(self.get("/ranking.json")[1])]
        assert ranked == ["Noodle bar", "Cafe", "Grill"], ranked
