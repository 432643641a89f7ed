"""How many tokens a text may have, without asking anybody.

Invariant: the estimate depends on the bytes alone, so that it never changes for the same text; a longer text never has
fewer tokens than its beginning.

Bytes are weighed by kind, because tokenisers differ most where a flat rule is most wrong: digits (one token each in some,
three to a token in others), text that is no language (base64, hashes), scripts beyond ASCII, and the marks of code. The
weights lie near the upper of three public vocabularies of 100,000, 150,000 and 200,000 tokens, measured on prose, code,
logs, tables, encoded data and seven scripts (`tests/unit/test_executor_tokens.py` keeps samples). What is left of the
error is a run's own: its model's totals teach it a factor (`RunState.token_ratio`).
"""

import re

# Text of unknown content: the rule of thumb for English and code.
CHARS_PER_TOKEN = 4
# A message, or a tool, costs a few tokens more than its text.
MESSAGE_TOKENS = 4

_DIGITS = b"0123456789"
_UPPER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PLAIN = b"abcdefghijklmnopqrstuvwxyz \\"
_BEYOND_ASCII = bytes(range(0x80, 0xF0))
# The first bytes of what lies beyond the basic plane: emoji, mostly.
_FAR = bytes(range(0xF0, 0x100))
# Letters and digits without a break for longer than words are: hardly any token has more than two of them.
_DENSE = re.compile(rb"[A-Za-z0-9+]{20,}")

# Thousandths of a token a byte.
_M_PLAIN, _M_UPPER, _M_DIGIT, _M_MARK, _M_BEYOND, _M_FAR, _M_DENSE = 225, 300, 900, 450, 370, 1300, 400


def estimated_tokens(chars: int) -> int:
    """The tokens of `chars` characters or bytes that nobody can look at, rounded up."""
    return -(-chars // CHARS_PER_TOKEN)


def tokens_in(text: bytes) -> int:
    """The tokens of a UTF-8 text, rounded up. About 100 MB a second."""
    left = len(text)
    thousandths = 0
    for kind, weight in (
        (_PLAIN, _M_PLAIN),
        (_DIGITS, _M_DIGIT),
        (_UPPER, _M_UPPER),
        (_BEYOND_ASCII, _M_BEYOND),
        (_FAR, _M_FAR),
    ):
        text_without = text.translate(None, kind)
        thousandths += weight * (len(text) - len(text_without))
        left -= len(text) - len(text_without)
    thousandths += _M_MARK * left
    thousandths += _M_DENSE * sum(len(run) for run in _DENSE.findall(text))
    return -(-thousandths // 1000)
