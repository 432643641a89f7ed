"""The test suite, from pure units to five real processes."""
