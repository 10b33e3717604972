"""Schemas of the records that coordinators and controllers write about groups, transactions and topics.

Each file in ``schemas/`` defines the messages of one topic, with the keys of Kafka's own definitions
(``common/message/*.json`` in its sources): as of Kafka 4.1, older versions included. A structure lists its fields where
it first occurs. No Python library carries them (docs/decisions/0013). A test compares what is read by them with what
Kafka's own classes read.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final

from storage_core.internal_records.message_schema import Field, Message


def _load_messages(name: str) -> dict[str, Message]:
    text = files("storage_core.internal_records").joinpath("schemas", f"{name}.json").read_text("utf-8")
    return {each["name"]: _parse_message(each) for each in json.loads(text)}


def _parse_message(definition: dict[str, Any]) -> Message:
    lowest, highest = _parse_versions(definition["validVersions"])
    flexible = definition["flexibleVersions"]
    return Message(
        definition["name"],
        definition.get("apiKey"),
        lowest,
        lowest if highest is None else highest,
        None if flexible == "none" else _parse_versions(flexible)[0],
        _parse_fields(definition["fields"], {}),
    )


def _parse_versions(text: str) -> tuple[int, int | None]:
    """Parse versions such as ``3``, ``0-4`` or ``2+``.

    Returns:
        The first version and the last one; None as the last if there is no end.
    """
    if text.endswith("+"):
        return int(text[:-1]), None
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _parse_fields(
    definitions: list[dict[str, Any]], structs: dict[str, tuple[Field, ...]]
) -> tuple[Field, ...]:
    return tuple(_parse_field(each, structs) for each in definitions)


def _parse_field(definition: dict[str, Any], structs: dict[str, tuple[Field, ...]]) -> Field:
    kind = definition["type"].removeprefix("[]")
    is_array = definition["type"] != kind
    if "fields" in definition:
        structs[kind] = _parse_fields(definition["fields"], structs)
    fields = structs.get(kind, ())
    first_version, last_version = _parse_versions(definition["versions"])
    tag = definition.get("tag")
    default = None if tag is None else definition.get("default", _zero_value(kind, fields, is_array=is_array))
    return Field(
        definition["name"],
        kind,
        is_array=is_array,
        is_nullable="nullableVersions" in definition,
        first_version=first_version,
        last_version=last_version,
        tag=tag,
        default=default,
        fields=fields,
    )


def _zero_value(kind: str, fields: tuple[Field, ...], *, is_array: bool = False) -> object:
    """Return what Kafka gives a field whose definition names no default."""
    if is_array:
        return []
    if fields:
        return {each.name: _zero_value(each.kind, each.fields, is_array=each.is_array) for each in fields}
    zeros: dict[str, object] = {"bool": False, "float64": 0.0, "uuid": "A" * 22, "string": "", "bytes": b""}
    return zeros.get(kind, 0)


GROUP_COORDINATOR: Final = _load_messages("group_coordinator")
"""Keys and values of ``__consumer_offsets`` (KIP-211, KIP-345, KIP-848, KIP-932, KIP-1071)."""

CONSUMER_PROTOCOL: Final = _load_messages("consumer_protocol")
"""What members of classic groups tell each other (KIP-429, KIP-792, KIP-881)."""

TRANSACTION_COORDINATOR: Final = _load_messages("transaction_coordinator")
"""Keys and values of ``__transaction_state`` (KIP-98, KIP-890)."""

SHARE_COORDINATOR: Final = _load_messages("share_coordinator")
"""Keys and values of ``__share_group_state`` (KIP-932)."""

CLUSTER_METADATA: Final = _load_messages("cluster_metadata")
"""Values of ``__cluster_metadata`` (KIP-631, KIP-746, KIP-778, KIP-858, KIP-868, KIP-966)."""

REMOTE_LOG_METADATA: Final = _load_messages("remote_log_metadata")
"""Values of ``__remote_log_metadata`` (KIP-405, KIP-1005)."""

CONTROL_RECORDS: Final = _load_messages("control_records")
"""Values of control records of ``__cluster_metadata`` (KIP-595, KIP-630, KIP-853)."""
