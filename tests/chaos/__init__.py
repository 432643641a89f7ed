"""Chaos: real processes on a real cluster, faults at random under load, and the invariants read from the log."""
