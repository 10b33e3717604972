"""Values with types: from the bytes of keys and values to columns, by the schemas that they were written with."""

__all__: list[str] = []
