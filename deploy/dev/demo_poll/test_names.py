"""What people type is shown as text."""

import poll
from visitor import Visit


class NamesTest(Visit):
    def test_a_name_is_no_markup(self) -> None:
        poll.PLACES["<b>Grill</b>"] = 0
        assert "<b>" not in self.get("/")[1], "the name became markup"

    def test_a_name_does_not_leave_its_attribute(self) -> None:
        poll.PLACES['x" onclick="y'] = 0
        assert 'value="x" onclick="y"' not in self.get("/")[1], "a quotation mark ended the attribute"
