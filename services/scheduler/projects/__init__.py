"""Projects: from a brief to verified, committed features, session by session.

Owns nothing that must survive it: a project is its log. Every scheduler may advance any project; the fence lets one
decision win, and the runs that a decision asks for have ids that derive from it.

Reading order: facts (what is seen of a run), decide (what is to be recorded, and which run should exist; pure) with
starting (which session is next), ending (what the end of a run means), lanes (what holds for sessions beside each other)
and selection (which feature, which caps) with shares (how much of a cap each may use); sessions and prompt (what a run is
told; pure); orchestrator (does it).
"""
