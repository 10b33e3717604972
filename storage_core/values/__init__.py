"""Values with types: from the bytes of keys and values to columns, by the schemas that they were written with."""

from typing import TYPE_CHECKING

from storage_core.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from storage_core.values.avro import decode_avro

__all__ = ["decode_avro"]

__getattr__, __dir__ = lazy_imports(__name__, "storage_core.values.avro")
