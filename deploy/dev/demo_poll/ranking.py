"""GET /ranking.json: the places, the one that leads first."""

import json

from poll import PLACES, Answer, Form, Routes


def ranking(form: Form) -> Answer:
    """By votes, then by name."""
    del form
    ranked = sorted(PLACES.items(), key=lambda item: (-item[1], item[0]))
    return 200, "application/json", json.dumps([{"place": place, "votes": votes} for place, votes in ranked])


ROUTES: Routes = {("GET", "/ranking.json"): ranking}
