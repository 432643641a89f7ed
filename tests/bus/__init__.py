"""One conformance suite for every bus."""
