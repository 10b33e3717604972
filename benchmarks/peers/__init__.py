"""What segmentlog is measured beside. Each module does one peer's work as well as that peer allows."""
