"""Schemas that are JSON."""

from __future__ import annotations

import json
from typing import Any


def load_json(text: str) -> Any:
    """Read a schema whose names and defaults can be those of columns.

    Raises:
        ValueError: The text is not JSON, or has half of a surrogate pair, which UTF-8 cannot have.
        RecursionError: The JSON is nested too deeply.
    """
    document = json.loads(text)
    if "\\u" in text or not text.isascii():
        json.dumps(document, ensure_ascii=False).encode()
    return document
