"""The model as a peer: its client, attempts, faults, prices, deltas. Read `talk`, then `completion`.

Invariant: one owner of retries; the vendor stays in `model`.
"""
