"""Records of Kafka's internal topics: what their keys and values say, and the text that ``kafka-dump-log.sh`` makes of them.

Coordinators (KIP-848's ``CoordinatorRecord``) put the record's type before a key, and the version before a value. The
metadata log (KIP-631) and that of tiered storage (KIP-405) have values only: a frame version, the type and the version,
each as unsigned varint, precede the record.

Each file in ``schemas/`` defines the messages of one topic, with the keys of Kafka's own definitions
(``common/message/*.json`` in its sources): as of Kafka 4.1, older versions included. A structure lists its fields where
it first occurs. No Python library carries them (docs/decisions/0013). A test compares what is read by them with what
Kafka's own classes read.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, TypeAlias

from storage_core.errors import CorruptRecordError, UnsupportedFormatError
from storage_core.internal_records.message_schema import (
    Field,
    Message,
    MessageData,
    json_text,
    read_int16,
    read_message,
    read_unsigned_varint,
)

Decoder: TypeAlias = Callable[[bytes | None, bytes | None, int], tuple[str | None, str | None]]
"""Makes the texts of a record's key and value from its key, value and offset. A text is None if nothing is printed."""

_TOMBSTONE: Final = "<DELETE>"
_FRAME_VERSION: Final = 1
_KNOWN_KEYS: Final = 4096
_MAX_KNOWN_KEY_BYTES: Final = 512
_MAX_INT16: Final = (1 << 15) - 1
# Of Kafka's `ControlRecordType`, those whose values the tool prints: its name for them, and their messages.
_CONTROL_RECORDS: Final = {
    2: ("LeaderChange:", "LeaderChangeMessage"),
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}
_SEGMENT_STATES: Final = (
    "COPY_SEGMENT_STARTED",
    "COPY_SEGMENT_FINISHED",
    "DELETE_SEGMENT_STARTED",
    "DELETE_SEGMENT_FINISHED",
)
_PARTITION_STATES: Final = (
    "DELETE_PARTITION_MARKED",
    "DELETE_PARTITION_STARTED",
    "DELETE_PARTITION_FINISHED",
)


class UnknownRecordTypeError(UnsupportedFormatError):
    """A coordinator's record is of a type that this version does not know."""

    def __init__(self, type_id: int) -> None:
        super().__init__(f"Found an unknown record type {type_id}")
        self.type_id = type_id


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """A record of a group, transaction or share coordinator. A tombstone has neither value nor version."""

    name: str
    type_id: int
    key: MessageData
    version: int | None
    value: MessageData | None


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

_RecordTypes: TypeAlias = Mapping[int, tuple[Message, Message]]


def _record_types(messages: Mapping[str, Message]) -> _RecordTypes:
    """Pair the messages of keys and values by the type of the record."""
    keys = [message for name, message in messages.items() if name.endswith("Key")]
    return {
        key.type_id: (key, messages[key.name.removesuffix("Key") + "Value"])
        for key in keys
        if key.type_id is not None
    }


_GROUP_TYPES: Final = _record_types(GROUP_COORDINATOR)
_TRANSACTION_TYPES: Final = _record_types(TRANSACTION_COORDINATOR)
_SHARE_TYPES: Final = _record_types(SHARE_COORDINATOR)
_METADATA_TYPES: Final = {message.type_id: message for message in CLUSTER_METADATA.values()}
_REMOTE_TYPES: Final = {message.type_id: message for message in REMOTE_LOG_METADATA.values()}


def read_group_record(key: bytes, value: bytes | None) -> CoordinatorRecord:
    """Read a record of ``__consumer_offsets``.

    Raises:
        UnknownRecordTypeError: Its type is not known.
        UnsupportedFormatError: Its version is not known.
        CorruptRecordError: Its key or value is malformed.
    """
    return _read_coordinator_record(_GROUP_TYPES, key, value)


def read_share_record(key: bytes, value: bytes | None) -> CoordinatorRecord:
    """Read a record of ``__share_group_state``, as `read_group_record` does."""
    return _read_coordinator_record(_SHARE_TYPES, key, value)


def read_metadata_record(value: bytes) -> tuple[str, MessageData]:
    """Read a record of ``__cluster_metadata``: its type's name, and its fields.

    Raises:
        CorruptRecordError: It is malformed, or its type is not known.
    """
    message, _, data = _read_framed(_METADATA_TYPES, value)
    return message.name, data


def _read_coordinator_record(types: _RecordTypes, key: bytes, value: bytes | None) -> CoordinatorRecord:
    """Read a record as Kafka's ``CoordinatorRecordSerde.deserialize`` does."""
    type_id, key_data = _read_key(types, key)
    name = types[type_id][0].name.removesuffix("Key")
    if value is None:
        return CoordinatorRecord(name, type_id, key_data, None, None)
    return CoordinatorRecord(name, type_id, key_data, *_read_value(types, type_id, value))


def _read_key(types: _RecordTypes, key: bytes) -> tuple[int, MessageData]:
    type_id = _version_before(key, "key")
    if type_id not in types:
        raise UnknownRecordTypeError(type_id)
    return type_id, _read_after_version(types[type_id][0], type_id, key, "key")


def _read_value(types: _RecordTypes, type_id: int, value: bytes) -> tuple[int, MessageData]:
    message = types[type_id][1]
    version = _version_before(value, "value")
    if not message.lowest_version <= version <= message.highest_version:
        raise UnsupportedFormatError(f"Found an unknown record version {version} for {type_id} type")
    return version, _read_after_version(message, version, value, "value")


def _version_before(data: bytes, what: str) -> int:
    try:
        return read_int16(data)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"Could not read version from {what}'s buffer.") from error


def _read_after_version(message: Message, version: int, data: bytes, what: str) -> MessageData:
    try:
        return read_message(message, version, data, 2)[0]
    except CorruptRecordError as error:
        raise CorruptRecordError(
            f"Could not read record with version {version} from {what}'s buffer due to: {error.args[0]}."
        ) from error


class _CoordinatorTexts:
    """Makes texts as ``DumpLogSegments.CoordinatorRecordMessageParser`` does."""

    def __init__(self, types: _RecordTypes) -> None:
        self._types = types
        # A coordinator writes the same keys again and again.
        self._known_key = functools.lru_cache(_KNOWN_KEYS)(self._key)

    def __call__(self, key: bytes | None, value: bytes | None, offset: int) -> tuple[str | None, str | None]:
        if key is None:
            raise CorruptRecordError(
                "The record has no key, so it is none of this topic's: Kafka's decoder fails on it. "
                "Dump without a decoder.",
                offset=offset,
            )
        try:
            type_id, text = self._known_key(key) if len(key) <= _MAX_KNOWN_KEY_BYTES else self._key(key)
            return text, _TOMBSTONE if value is None else self._value(type_id, value)
        except UnknownRecordTypeError as error:
            return f"Unknown record type {error.type_id} at offset {offset}, skipping.", None
        except (CorruptRecordError, UnsupportedFormatError) as error:
            return f"Error at offset {offset}, skipping. {error.args[0]}", None

    def _key(self, key: bytes) -> tuple[int, str]:
        type_id, data = _read_key(self._types, key)
        return type_id, json_text({"type": str(type_id), "data": data})

    def _value(self, type_id: int, value: bytes) -> str:
        version, data = _read_value(self._types, type_id, value)
        if self._types[type_id][1].name == "GroupMetadataValue":
            data = _unpacked(data)
        return json_text({"version": str(version), "data": data})


def _unpacked(group: MessageData) -> MessageData:
    """Replace the bytes of the consumer protocol in a classic group by what they say."""
    if group["protocolType"] != "consumer":
        return group
    return {**group, "members": [_unpacked_member(member) for member in group["members"]]}


def _unpacked_member(member: MessageData) -> MessageData:
    return {
        **member,
        "subscription": consumer_protocol("ConsumerProtocolSubscription", member["subscription"]),
        "assignment": consumer_protocol("ConsumerProtocolAssignment", member["assignment"]),
    }


def consumer_protocol(name: str, data: bytes) -> MessageData | bytes:
    """Read a member's subscription or assignment. Bytes that are no such message are returned as they are."""
    try:
        return read_message(CONSUMER_PROTOCOL[name], read_int16(data), data, 2)[0]
    except CorruptRecordError:
        return data


def _metadata_texts(_key: bytes | None, value: bytes | None, offset: int) -> tuple[None, str]:
    """Write texts as ``DumpLogSegments.ClusterMetadataLogMessageParser`` does."""
    try:
        message, version, data = _read_framed(_METADATA_TYPES, b"" if value is None else value)
    except CorruptRecordError as error:
        return None, f"Error at {offset}, skipping. {error.args[0]}"
    return None, json_text({"type": _constant_name(message.name), "version": version, "data": data})


def _constant_name(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


def _read_framed(types: Mapping[int | None, Message], value: bytes) -> tuple[Message, int, MessageData]:
    """Read a framed message as Kafka's ``AbstractApiMessageSerde.read`` does."""
    frame_version, position = _framing(value, 0, "frame version")
    if frame_version == 0:
        raise CorruptRecordError(
            "Could not deserialize metadata record with frame version 0. "
            "Note that upgrades from the preview release of KRaft in 2.8 to newer versions are not supported."
        )
    if frame_version != _FRAME_VERSION:
        raise CorruptRecordError(
            f"Could not deserialize metadata record due to unknown frame version {frame_version}"
            f"(only frame version {_FRAME_VERSION} is supported)"
        )
    type_id, position = _framing(value, position, "type")
    version, position = _framing(value, position, "version")
    if type_id not in types:
        raise CorruptRecordError(
            f"org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id {type_id}"
        )
    try:
        data, position = read_message(types[type_id], version, value, position)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"Failed to deserialize record with type {type_id}") from error
    if position < len(value):
        raise CorruptRecordError(f"Found {len(value) - position} byte(s) of garbage after {type_id}")
    return types[type_id], version, data


def _framing(value: bytes, position: int, what: str) -> tuple[int, int]:
    try:
        number, position = read_unsigned_varint(value, position)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"Error while reading {what}") from error
    if number > _MAX_INT16:
        raise CorruptRecordError(f"Value for {what} was too large.")
    # Java keeps the low 16 bits of a negative int.
    return (number + _MAX_INT16 + 1) % (1 << 16) - _MAX_INT16 - 1, position


def _remote_log_texts(_key: bytes | None, value: bytes | None, offset: int) -> tuple[None, str]:
    """Write texts as ``DumpLogSegments.RemoteMetadataLogMessageParser`` does."""
    if value is None:
        reason = (
            'Cannot invoke "java.nio.ByteBuffer.remaining()" because the return value of '
            '"org.apache.kafka.common.record.Record.value()" is null'
        )
        return None, f"Error at offset {offset}, skipping. {reason}"
    try:
        message, _, data = _read_framed(_REMOTE_TYPES, value)
        return None, _REMOTE_TEXTS[message.name](data)
    except CorruptRecordError as error:
        return None, f"Error at offset {offset}, skipping. {error.args[0]}"


def _remote_segment_text(data: MessageData) -> str:
    start, end = data["startOffset"], data["endOffset"]
    if start < 0:
        raise CorruptRecordError(
            f"Unexpected start offset = {start}. StartOffset for a remote segment cannot be negative"
        )
    if end < start:
        raise CorruptRecordError(
            f"Unexpected end offset = {end}. EndOffset for a remote segment cannot be less than startOffset = {start}"
        )
    epochs = _leader_epochs(data)
    return (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={_remote_segment_id(data)}, startOffset={start}, "
        f"endOffset={end}, brokerId={data['brokerId']}, maxTimestampMs={data['maxTimestampMs']}, "
        f"eventTimestampMs={data['eventTimestampMs']}, segmentLeaderEpochs={epochs}, "
        f"segmentSizeInBytes={data['segmentSizeInBytes']}, customMetadata={_custom_metadata(data)}, "
        f"state={_segment_state(data)}, txnIdxEmpty={_is_transaction_index_empty(data)}}}"
    )


def _remote_segment_update_text(data: MessageData) -> str:
    return (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={_remote_segment_id(data)}, "
        f"customMetadata={_custom_metadata(data)}, state={_segment_state(data)}, "
        f"eventTimestampMs={data['eventTimestampMs']}, brokerId={data['brokerId']}}}"
    )


def _remote_partition_delete_text(data: MessageData) -> str:
    state_id = data["remotePartitionDeleteState"]
    if not 0 <= state_id < len(_PARTITION_STATES):
        # Kafka's exception has no message here.
        raise CorruptRecordError("null")
    return (
        f"RemotePartitionDeleteMetadata{{topicPartition={_topic_id_partition(data['topicIdPartition'])}, "
        f"state={_PARTITION_STATES[state_id]}, eventTimestampMs={data['eventTimestampMs']}, "
        f"brokerId={data['brokerId']}}}"
    )


def _remote_segment_snapshot_text(data: MessageData) -> str:
    state = _segment_state(data)
    return (
        f"RemoteLogSegmentMetadataSnapshot{{segmentId={data['segmentId']}, startOffset={data['startOffset']}, "
        f"endOffset={data['endOffset']}, maxTimestampMs={data['maxTimestampMs']}, "
        f"segmentLeaderEpochs={_leader_epochs(data)}, segmentSizeInBytes={data['segmentSizeInBytes']}, "
        f"customMetadata={_custom_metadata(data)}, state={state}, "
        f"txnIdxEmpty={_is_transaction_index_empty(data)}}}"
    )


_REMOTE_TEXTS: Final[Mapping[str, Callable[[MessageData], str]]] = {
    "RemoteLogSegmentMetadataRecord": _remote_segment_text,
    "RemoteLogSegmentMetadataUpdateRecord": _remote_segment_update_text,
    "RemotePartitionDeleteMetadataRecord": _remote_partition_delete_text,
    "RemoteLogSegmentMetadataSnapshotRecord": _remote_segment_snapshot_text,
}


def _remote_segment_id(data: MessageData) -> str:
    segment = data["remoteLogSegmentId"]
    topic_partition = _topic_id_partition(segment["topicIdPartition"])
    return f"RemoteLogSegmentId{{topicIdPartition={topic_partition}, id={segment['id']}}}"


def _topic_id_partition(data: MessageData) -> str:
    return f"{data['id']}:{data['name']}-{data['partition']}"


def _leader_epochs(data: MessageData) -> str:
    epochs = {entry["leaderEpoch"]: entry["offset"] for entry in data["segmentLeaderEpochs"]}
    if not epochs:
        raise CorruptRecordError("segmentLeaderEpochs can not be null or empty")
    return "{" + ", ".join(f"{epoch}={offset}" for epoch, offset in sorted(epochs.items())) + "}"


def _custom_metadata(data: MessageData) -> str:
    custom = data["customMetadata"]
    return "Optional.empty" if custom is None else f"Optional[CustomMetadata{{{len(custom)} bytes}}]"


def _segment_state(data: MessageData) -> str:
    state_id = data["remoteLogSegmentState"]
    if not 0 <= state_id < len(_SEGMENT_STATES):
        raise CorruptRecordError("state can not be null")
    return _SEGMENT_STATES[state_id]


def _is_transaction_index_empty(data: MessageData) -> str:
    return json_text(data.get("txnIndexEmpty", False))


def control_record_text(type_id: int, value: bytes) -> str | None:
    """Return the text of a control record of the metadata log, such as ``SnapshotHeader {"version":0,…}``.

    Returns:
        None for a type whose value the tool does not print.

    Raises:
        CorruptRecordError: The value is malformed.
    """
    if type_id not in _CONTROL_RECORDS:
        return None
    name, message_name = _CONTROL_RECORDS[type_id]
    message = CONTROL_RECORDS[message_name]
    # Each of them begins with its version. The tool reads all as version 0, whatever they say.
    version = min(read_int16(value), message.highest_version)
    return f"{name} {json_text(read_message(message, version, value)[0])}"


MESSAGE_DECODERS: Final[Mapping[str, Decoder]] = {
    "offsets": _CoordinatorTexts(_GROUP_TYPES),
    "transaction-log": _CoordinatorTexts(_TRANSACTION_TYPES),
    "cluster-metadata": _metadata_texts,
    "share-group-state": _CoordinatorTexts(_SHARE_TYPES),
    "remote-log-metadata": _remote_log_texts,
}
"""What each ``--…-decoder`` of ``kafka-dump-log.sh`` 4.1 prints for keys and values.

A record without a key fails the tool, and raises `CorruptRecordError` here, for the logs of coordinators.
"""
