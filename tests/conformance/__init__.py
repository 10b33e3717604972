"""The conformance suite: directories that real brokers wrote, read in every way there is."""
