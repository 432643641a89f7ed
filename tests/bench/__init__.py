"""The bench: what Perdure costs, beside what the same work costs without it, in one run on one machine."""
