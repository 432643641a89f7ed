"""Gateway: REST and SSE for people and programs.

Owns nothing: every gateway answers for every run. Its index (a file, or a schema of PostgreSQL that all
gateways share) is a cache, its streams live as long as their clients.
Consumes: the `life` of all shards (lists), the feed and the live subject of watched runs (streams), the liveness and
catalog buckets (health), the spending bucket (quotas), all records when metrics are read, `<p>.ctl.<boot>` (metrics).
Emits: `run.created`, `run.start_requested`, `run.cancel_requested`, `run.cancelled` (of runs that nobody owns),
`run.pause_requested`, `run.resume_requested`, `input.received`, `reconciliation.resolved`, `message.received` and the
tombstone `run.deleted`; in projects `project.created`, their pausing, resuming and cancelling, and features that a person
skips or retries; all through `libs/bus/runs.py`; for operators, dead letters to where they came from.

A run that a later version wrote: lists keep what they last understood, its events are passed on as they are where
their records can be read, and everything that has to fold it answers 503 `CONFIGURATION_ERROR` (upgrade this gateway).

Reading order: app (what is wired to what), operations (the API in one table), tasks, commands and decisions, runs,
projects, outline, stream and watch (one follower a run, many clients), problems (failures become envelopes).
"""
