"""Sources: places outside where people put what they want done; each wish becomes one run.

Invariant: a source holds no state of ours. The id of a run derives from the source and the wish, so looking again, after a
restart or by two schedulers, makes nothing twice; a source that fails, or one wish that cannot be read, changes nothing
for any other.

Reading order: wish (what a source says) > frontmatter (a task as a text; pure) > directory; github and linear over tracker
and fetch (the sources) > intake (makes runs of wishes, and tells sources what became of them); configuration (which there
are).
"""
