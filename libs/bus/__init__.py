"""The only door to NATS; its types and exceptions stop here."""
