"""Rewrite the expected states of the golden histories; the diff shows what the fold does differently now."""

from __future__ import annotations

import json

from tests.contract.golden import all_histories, folded, state_file

for history in all_histories():
    text = json.dumps(folded(history), indent=1, ensure_ascii=False)
    state_file(history).write_text(text + "\n", encoding="utf-8")
