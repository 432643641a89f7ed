"""POST /votes: vote for a place."""

from poll import PLACES, VOTERS, Answer, Form, Routes


def vote(form: Form) -> Answer:
    """Count a vote for a place that was proposed, one for each voter."""
    place, voter = form.get("place", ""), form.get("voter", "").strip()
    if place not in PLACES:
        return 404, "text/plain", "Nobody proposed this place.\n"
    if voter and voter in VOTERS:
        return 409, "text/plain", f"{voter} has voted.\n"
    VOTERS[voter] = place
    PLACES[place] += 1
    return 303, "/", ""


ROUTES: Routes = {("POST", "/votes"): vote}
