"""Tool host: carries out tool calls in workspaces, once per key.

Owns      the workspaces whose logs name its boot: their directories' locks, hidden repositories, running processes.
Consumes  READ_ONLY calls on `<p>.call.host.<boot>`, looks of people on `<p>.call.look.<boot>`, effects on
          `<p>.tool.host.<boot>`, cancels on `<p>.ctl.<boot>`.
Emits     results into the journal (effects) or as replies (READ_ONLY), notices on the live subjects, its catalog.

Reading order: app (what is wired to what), invoke (one call), registry (schema and policy), attach (whose workspace),
tools/ (what tools do), mcp/ (tools of others), knowledge/ (documents and their indexes), guard, room, undo, repository,
processes, launchpad, launched, launcher, cgroups and sandbox/ (what they do it with), evidence (facts for verifiers),
looks (for people), clearing (folders of the deleted), predecessor, leftovers, snapshots and replay (what a former host left).
The protocol around a call (epoch, journal, lease) is every host's and lives in `libs/chassis/hosting.py`.
"""
