"""Turns life records into rows that can be listed; disposable, because the log is the truth."""
