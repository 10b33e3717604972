"""The peers that segmentlog is compared with. Each module uses one peer as efficiently as that peer allows."""
