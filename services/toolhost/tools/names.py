"""How file names are shown to a model.

Invariant: one name, one line: what could be mistaken (control and direction characters, quotes, blanks at the ends,
bytes that are not UTF-8) is shown as a JSON string in double quotes, everything else as it is.
"""

import json


def shown(path: str) -> str:
    plain = (
        path.isprintable()
        and path == path.strip()
        and not path.startswith(('"', "`", "'"))
        and "\\" not in path
    )
    return path if plain else f'"{"".join(map(_escaped, path))}"'


def _escaped(character: str) -> str:
    if character.isprintable() and character not in '"\\':
        return character
    return json.dumps(character)[1:-1]
