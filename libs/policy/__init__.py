"""Decides allow, ask or deny for a tool call, purely."""
