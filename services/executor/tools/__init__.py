"""What a tool call touches: the runtime's own tools, hosts, calls and their recovery, workspaces, children.

Invariant: nothing is sent whose intent is not in the log.
"""
