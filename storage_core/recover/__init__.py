"""A copy of a damaged log directory that a broker loads, or the same directory repaired in place."""

__all__: list[str] = []
