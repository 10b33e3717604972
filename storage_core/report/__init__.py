"""The state of a log directory as one HTML page."""

__all__: list[str] = []
