"""What an approval is bound to: exactly one call with exactly these arguments.

Invariant: two calls share a hash iff tool, call id and canonical arguments are the same.
"""

import hashlib

import msgspec


def approval_hash(tool: str, arguments: dict[str, object], call_id: str) -> str:
    """SHA-256 (hex) of tool, call and canonical JSON (sorted keys, no spaces) of the full, unclipped arguments."""
    return hashlib.sha256(_canonical.encode([tool, call_id, arguments])).hexdigest()


_canonical = msgspec.json.Encoder(order="sorted")
