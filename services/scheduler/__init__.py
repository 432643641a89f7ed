"""Scheduler: decides which run may be executed now, and notices who died.

Owns      nothing that must survive it: its rows are the latest `life` record of every run that has not ended.
Consumes  `life` records of the log, the leases bucket, tasks on `<p>.tasks.<tenant>`, fired timers.
Emits     tickets on `<p>.work.<priority>`, written deaths, timers, cancels on `<p>.ctl.<boot>`, runs made from published
          tasks, rejected tasks; the decisions about projects and schedules and the runs of both; in runs the ends of
          children, the cancelling of children, and the end of a wait that nobody ended.

Reading order: row (what is known of a run) > wakeups (what changed) > rows (the indexes) > admission (who is next) >
tickets (tell an executor); chores (what else a change asks for) > family, deadlines, remains, snapshots, halting, retention, webhooks,
projects, schedules (who does it); beside them leadership (who acts), replicas and takeover (who died), sweep (what was
missed), tasks (runs from the bus), sources (runs from elsewhere).
"""
