"""Reviews: a second model judges a change by a rubric (docs/adr/0026).

Reading order: brief (what the judge is told), judgement (how its answer is read, and what result it is), judge (asking it with
patience), endpoint (the wire).
"""
