"""How Perdure is started: the command line, the launcher and the manifests."""
