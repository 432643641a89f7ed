"""The whole system in one event loop with virtual time: seeded faults, every crash point, invariants after each run."""
