"""The peers that segmentlog is compared with. Each module does one peer's work as well as that peer allows."""
