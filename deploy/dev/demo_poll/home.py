"""GET /: the places, their votes, and the forms."""

from html import escape

from poll import PLACES, Answer, Form, Routes

PAGE = """<!doctype html>
<title>Lunch</title>
<h1>Where shall we eat?</h1>
<ul>{places}</ul>
<form method="post" action="/places"><input name="place"><button>Propose</button></form>
<form method="post" action="/votes"><input name="voter"><select name="place">{choices}</select><button>Vote</button></form>
"""


def home(form: Form) -> Answer:
    """The page as it is now."""
    del form
    named = [(escape(place), votes) for place, votes in PLACES.items()]
    places = "".join(f"<li>{place}: {votes}</li>" for place, votes in named)
    choices = "".join(f'<option value="{place}">{place}</option>' for place, _ in named)
    return 200, "text/html", PAGE.format(places=places, choices=choices)


ROUTES: Routes = {("GET", "/"): home}
