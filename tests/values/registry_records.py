"""Records of a schema registry's topic, as registries write them."""

from __future__ import annotations

import json
from typing import Any


def record_key(
    subject: str | None, version: int | None = None, keytype: str = "SCHEMA", **others: Any
) -> bytes:
    """Key in the order of Confluent's registry; ``others`` come last, as Redpanda's do."""
    fields = {
        "keytype": keytype,
        "subject": subject,
        **({} if version is None else {"version": version}),
        "magic": 1,
    }
    return json.dumps({**fields, **others}, separators=(",", ":")).encode()


def karapace_key(subject: str, version: int) -> bytes:
    """Key in the order that Karapace had for years."""
    fields = {"subject": subject, "version": version, "magic": 1, "keytype": "SCHEMA"}
    return json.dumps(fields, separators=(",", ":")).encode()


def schema_value(subject: str, version: int, schema_id: int, text: str = '"string"', **others: Any) -> bytes:
    """Value of a schema; ``references`` are triples of name, subject and version."""
    references = [
        dict(zip(("name", "subject", "version"), each, strict=True)) for each in others.pop("references", ())
    ]
    fields = {
        "subject": subject,
        "version": version,
        "id": schema_id,
        "schema": text,
        "references": references,
    }
    return json.dumps({**fields, **others}).encode()


class RegistryLog:
    """A topic that grows record by record, at offsets that leave gaps."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, bytes | None, bytes | None]] = []

    def add(self, key: bytes | None, value: bytes | None) -> int:
        """Append a record and return its offset."""
        offset = 2 * len(self.records)
        self.records.append((offset, 1_000 + offset, key, value))
        return offset

    def register(
        self, subject: str, version: int, schema_id: int, text: str = '"string"', **others: Any
    ) -> int:
        """Append a schema and return its offset."""
        return self.add(
            record_key(subject, version), schema_value(subject, version, schema_id, text, **others)
        )

    def tombstone(self, subject: str, version: int) -> int:
        """Append the tombstone of a version."""
        return self.add(record_key(subject, version), None)

    def delete_subject(self, subject: str, version: int) -> int:
        """Append the deletion of all versions up to one."""
        value = json.dumps({"subject": subject, "version": version}).encode()
        return self.add(record_key(subject, keytype="DELETE_SUBJECT"), value)
