"""One service against a real NATS server."""
