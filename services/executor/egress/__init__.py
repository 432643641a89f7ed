"""From a run's state to the request that its model gets. Read `history`, then `context`.

Invariant: pure; made from the log alone.
"""
