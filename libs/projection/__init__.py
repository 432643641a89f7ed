"""Turns life records into rows that can be listed, in SQLite or PostgreSQL; disposable, because the log is the truth."""
