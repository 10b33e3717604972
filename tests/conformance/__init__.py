"""The conformance suite: directories that real brokers wrote, read in every possible way."""
