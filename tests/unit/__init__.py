"""Tests of pure functions: no servers, no files but temporary ones."""
