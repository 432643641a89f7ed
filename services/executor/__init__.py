"""The executor: owns runs and carries them through the agent loop.

Owns: the claim of each run it holds. Consumes: tickets (`<p>.work.*`), the feed of its runs, tool notices.
Emits: every event of an owned run, tool calls, model deltas.
Reading order: decision (what comes next), session (one owned run), claims (how runs are got), activities, then tools,
endpoint, ingress and egress.
"""
