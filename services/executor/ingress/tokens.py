"""How many tokens a text may have, without asking anybody.

Invariant: the estimate depends on the length alone, so that it costs nothing and never changes for the same text.

Four characters a token is the rule of thumb for English and code. It is applied to UTF-8 bytes of JSON: escapes and
other scripts, which tokenise worse, count for more. A message costs a few tokens more than its text.
"""

CHARS_PER_TOKEN = 4
MESSAGE_TOKENS = 4


def estimated_tokens(chars: int) -> int:
    """The tokens of `chars` characters or bytes, rounded up."""
    return -(-chars // CHARS_PER_TOKEN)
