"""Rewrite the expected states of the golden histories; the diff shows what the fold does differently now."""

from __future__ import annotations

import json

from tests.contract.golden import folded, histories, project_histories, state_file

for history in [*histories(), *project_histories()]:
    text = json.dumps(folded(history), indent=1, ensure_ascii=False)
    state_file(history).write_text(text + "\n", encoding="utf-8")
