"""GET /healthz: whether the poll is served."""

from poll import Answer, Form, Routes


def health(form: Form) -> Answer:
    """It is, if this answers."""
    del form
    return 200, "text/plain", "ok\n"


ROUTES: Routes = {("GET", "/healthz"): health}
