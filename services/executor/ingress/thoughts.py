"""Thinking that a model writes into its text, at the very beginning and between tags.

Invariant: how the text was split on its way never changes what is thought and what is said; only a tag that opens the
text counts, so that an answer about such tags stays an answer.
"""

_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
# A text that begins with more space than this begins with no tag.
_SPACE_MAX = 1_000


class Thoughts:
    """Feed it the text of a turn as it comes."""

    def __init__(self) -> None:
        self._held = ""
        self._closing = ""
        self._state = "start"

    def split(self, text: str) -> tuple[str, str]:
        """What `text` adds: to what is said, and to what is thought."""
        if self._state == "said":
            return text, ""
        self._held += text
        thought = ""
        if self._state == "start":
            self._open()
        if self._state == "thinking":
            thought = self._think()
        if self._state == "between":
            self._held = self._held.lstrip()
            self._state = "said" if self._held else "between"
        if self._state != "said":
            return "", thought
        said, self._held = self._held, ""
        return said, thought

    def close(self) -> tuple[str, str]:
        """What was held back until the end."""
        held, self._held = self._held, ""
        match self._state:
            case "thinking":
                return "", held
            case "between":
                return "", ""
            case _:
                return held, ""

    def _open(self) -> None:
        head = self._held.lstrip()
        if len(self._held) - len(head) > _SPACE_MAX:
            self._state = "said"
            return
        for opening, closing in _TAGS.items():
            if head.startswith(opening):
                self._held, self._closing, self._state = head[len(opening) :], closing, "thinking"
                return
        if not any(opening.startswith(head) for opening in _TAGS):
            self._state = "said"

    def _think(self) -> str:
        before, found, after = self._held.partition(self._closing)
        if found:
            self._held, self._state = after, "between"
            return before
        kept = next(
            (size for size in range(len(self._closing) - 1, 0, -1) if before.endswith(self._closing[:size])),
            0,
        )
        self._held = before[len(before) - kept :]
        return before[: len(before) - kept]
