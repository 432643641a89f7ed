"""Public conformance suites, run against us where their tools can be had (`make conformance`); no part of `make test`."""
