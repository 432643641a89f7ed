"""MCP servers as tools of this host (Model Context Protocol, https://modelcontextprotocol.io).

Reading order: configuration (what the operator says), then what is pure: texts, names, schemas, declarations (a server's
tool as ours), results (its answer as ours); then stdio and http (how bytes get there), session (one connection), server
(one server, connected again when it has to be) and servers (all of them, as tools).
The protocol's package `mcp` is imported below here and nowhere else.
"""
