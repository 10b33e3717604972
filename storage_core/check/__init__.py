"""What is wrong with a log directory, and what a broker would do about it: `verify`, and indexes made anew."""

__all__: list[str] = []
