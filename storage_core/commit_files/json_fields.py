"""JSON in the files of a commit: compact, keys sorted, UTF-8, with a CRC-32C as 8 hexadecimal digits.

A file either consists of two lines, of which the second is the CRC of the first, or of lines that each begin with
the CRC of their rest. Readers ignore unknown keys, so that a later version can add some.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from storage_core.config import INT_MAX, LONG_MAX
from storage_core.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping


# Kafka's legal topic names. A topic followed by a partition number is a directory name.
TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{8}")
# The CRC line: 8 digits between two line feeds.
_CRC_LINE_BYTES: Final = 10
_QUOTED_LENGTH: Final = 80
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Encode one object, without a line feed."""
    return _ENCODER.encode(value).encode()


def with_crc_line(data: bytes) -> bytes:
    """Return the two lines of a file: an encoded object and its CRC."""
    return b"%b\n%08x\n" % (data, crc32c(data))


def parse_json_file(data: bytes, path: str, version: int) -> JsonFields:
    """Check and parse a file of two lines.

    Raises:
        CorruptCheckpointError: It is truncated, its CRC does not match, or it has another version.
    """
    body, crc_line = data[:-_CRC_LINE_BYTES], data[-_CRC_LINE_BYTES:]
    crc = crc32c(body)
    if crc_line != b"\n%08x\n" % crc:
        raise CorruptCheckpointError(
            f"Expected a line of JSON and a line with its CRC-32C {crc:08x}, found {crc_line!r} as the last "
            f"{_CRC_LINE_BYTES} bytes. The file is damaged or incomplete.",
            path=path,
        )
    fields = parse_json_object(body, path)
    found = fields.integer("version", maximum=INT_MAX)
    if found != version:
        raise CorruptCheckpointError(
            f"Expected version {version} in this file, found {found}. A newer release wrote it: use that release.",
            path=path,
        )
    return fields


def parse_json_object(data: bytes, path: str) -> JsonFields:
    """Parse one object.

    Raises:
        CorruptCheckpointError: It is not a JSON object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"Expected JSON, found {data[:_QUOTED_LENGTH]!r}. The file is damaged.", path=path
        ) from error
    return JsonFields(_as_object(value, path, "a JSON object"), path)


@dataclass(frozen=True, slots=True)
class JsonFields:
    """A JSON object whose fields are checked on access.

    Args:
        values: The fields by name.
        path: The file, for messages.
    """

    values: Mapping[str, Any]
    path: str

    def integer(self, name: str, *, minimum: int = 0, maximum: int = LONG_MAX) -> int:
        """Return an integer within bounds.

        Raises:
            CorruptCheckpointError: The field is missing or something else.
        """
        value = self.values.get(name)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.error(name, f"an integer from {minimum} to {maximum}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, pattern: re.Pattern[str], expected: str) -> str:
        """Return a string that matches a pattern, which ``expected`` describes in messages."""
        value = self.values.get(name)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self.error(name, expected)
        return value

    def topic_partition(self) -> tuple[str, int]:
        """Return the fields ``topic`` and ``partition``."""
        return self.text("topic", TOPIC, "a topic's name"), self.integer("partition", maximum=INT_MAX)

    def fingerprint(self) -> int:
        """Return the field ``fingerprint``."""
        return int(self.text("fingerprint", _FINGERPRINT, "8 hexadecimal digits"), 16)

    def is_null(self, name: str) -> bool:
        """Return True if a field is null or missing."""
        return self.values.get(name) is None

    def elements(self, name: str) -> list[Any]:
        """Return a list with elements of any type."""
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.error(name, "a list")
        return value

    def objects(self, name: str) -> list[JsonFields]:
        """Return a list of objects."""
        expected = f"objects in the list {name!r}"
        return [
            JsonFields(_as_object(value, self.path, expected), self.path) for value in self.elements(name)
        ]

    def error(self, name: str, expected: str) -> CorruptCheckpointError:
        """Return the error for a field that is not as expected."""
        found = repr(self.values[name])[:_QUOTED_LENGTH] if name in self.values else "nothing"
        message = f"Expected {expected} as {name!r}, found {found}. The file is damaged, or another program wrote it."
        return CorruptCheckpointError(message, path=self.path)


def _as_object(value: Any, path: str, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        found = repr(value)[:_QUOTED_LENGTH]
        raise CorruptCheckpointError(f"Expected {expected}, found {found}. The file is damaged.", path=path)
    return value
