"""The pure core of the loop. Read `decide` first; `calls` and `waits` are its parts.

Invariant: nothing here knows a clock, the bus or a socket.
"""
