"""Rules of the code base that no linter knows."""
