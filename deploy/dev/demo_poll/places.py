"""POST /places: propose a place."""

from poll import PLACES, Answer, Form, Routes


def propose(form: Form) -> Answer:
    """Add a place that has a name; one that is there already stays as it is."""
    place = form.get("place", "").strip()
    if not place:
        return 400, "text/plain", "Name a place.\n"
    PLACES.setdefault(place, 0)
    return 303, "/", ""


ROUTES: Routes = {("POST", "/places"): propose}
