"""From the bytes of a provider to one canonical turn, and what it means. Read `turn`, then `finish`.

Invariant: pure; the same bytes give the same turn.
"""
