"""Records that Kafka writes for itself: group offsets, transactions, metadata and share groups."""

__all__: list[str] = []
