"""The executor: owns runs and carries them through the agent loop.

Owns: the claim of each run it holds. Consumes: tickets (`<p>.work.*`), the feed of its runs, tool notices, the spending bucket.
Emits: every event of an owned run, tool calls, model deltas, what it bought for each tenant today (spending bucket),
recordings of model calls as blobs.
Reading order: decision (what comes next), session (one owned run), claims (how runs are got), activities, then tools,
endpoint, ingress and egress.
"""
