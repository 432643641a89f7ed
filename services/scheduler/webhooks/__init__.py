"""Webhooks: events of the log, sent to who asked for them.

Invariant: an event is sent at least once or kept as a dead letter, and one webhook gets its events one after the other in
the order of the log.

Reading order: matching (which event is for whom), delivery (one try, and what follows from how it went; the next try),
outbound (the request), keeper (who runs what).
"""
