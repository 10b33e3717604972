"""What the decoders make of every type and version of Kafka's internal records, and what ``kafka-dump-log.sh`` does.

A log holds random records of all types, intact and damaged; the tool, which reads them with the classes that Kafka
generates from its own definitions, must print the same for each.
"""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest

from storage_core import LogDirectory
from storage_core.internal_records.internal_records import (
    CLUSTER_METADATA,
    CONSUMER_PROTOCOL,
    GROUP_COORDINATOR,
    REMOTE_LOG_METADATA,
    SHARE_COORDINATOR,
    TRANSACTION_COORDINATOR,
)
from tests.internal_records.message_bytes import (
    coordinator_key,
    framed_bytes,
    message_bytes,
    random_message,
    record_bytes,
    unsigned_varint,
)
from tests.interop.dump_log_segments import printed_by_ours, printed_by_the_tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from random import Random

    from storage_core.internal_records.message_schema import Message

_OF_EACH = 12


class _Record(NamedTuple):
    key: bytes | None
    value: bytes | None


def _coordinator_records(messages: Mapping[str, Message], random: Random) -> Iterator[_Record]:
    for name, key_message in messages.items():
        if not name.endswith("Key"):
            continue
        value_message = messages[name.removesuffix("Key") + "Value"]
        for version in range(value_message.highest_version + 1):
            for _ in range(_OF_EACH):
                key = coordinator_key(key_message, random_message(key_message, 0, random))
                data = random_message(value_message, version, random)
                if name == "GroupMetadataKey":
                    data["protocolType"] = random.choice(("consumer", "consumer", "connect", ""))
                    for member in data["members"]:
                        member["subscription"] = _of_protocol("ConsumerProtocolSubscription", random)
                        member["assignment"] = _of_protocol("ConsumerProtocolAssignment", random)
                value = record_bytes(value_message, version, data)
                yield _Record(key, value)
                yield _Record(_damaged(key, random), value)
                yield _Record(key, _damaged(value, random))
            yield _Record(key, None)
            yield _Record(key, struct.pack(">h", value_message.highest_version + 1) + value[2:])
            yield _Record(key, struct.pack(">h", -1) + value[2:])
    for odd in (b"", b"\0", struct.pack(">h", -1), struct.pack(">h", 99) + b"later", b"\x7f\xff"):
        yield _Record(odd, b"\0\0")


def _of_protocol(name: str, random: Random) -> bytes:
    message = CONSUMER_PROTOCOL[name]
    version = random.choice((0, 1, 2, 3, 4, 7, -1))
    known = max(0, min(version, message.highest_version))
    written = record_bytes(message, known, random_message(message, known, random))
    return random.choice((struct.pack(">h", version) + written[2:], _damaged(written, random), b"", b"\0"))


def _framed_records(messages: Mapping[str, Message], random: Random) -> Iterator[_Record]:
    for message in messages.values():
        assert message.type_id is not None
        for version in range(message.highest_version + 3):
            known = min(version, message.highest_version)
            head = b"".join(map(unsigned_varint, (1, message.type_id, version)))
            for _ in range(_OF_EACH):
                data = random_message(message, known, random)
                if "remoteLogSegmentState" in data:
                    data["remoteLogSegmentState"] = random.randrange(0, 5)
                    if random.random() < 0.7:
                        data |= {"startOffset": 5, "endOffset": 5} if "startOffset" in data else {}
                if "remotePartitionDeleteState" in data:
                    data["remotePartitionDeleteState"] = random.randrange(0, 4)
                value = head + message_bytes(message, known, data)
                yield _Record(None, value)
                yield _Record(b"key", value + b"!")
                yield _Record(None, _damaged(value, random))
    message = next(iter(messages.values()))
    value = framed_bytes(message, 0, random_message(message, 0, random))
    yield from (_Record(None, odd + value[1:]) for odd in (b"\0", b"\2", unsigned_varint(-1), b"\xff" * 6))
    for odd in (
        None,
        b"",
        b"\1",
        unsigned_varint(1) + unsigned_varint(70000),
        b"\1\x63\0",
        b"\1\2",
        b"\1\2\xff",
    ):
        yield _Record(None, odd)
    for type_id in (-1, 6, 99):
        yield _Record(None, b"\1" + unsigned_varint(type_id) + b"\0")


def _damaged(data: bytes, random: Random) -> bytes:
    """Cut, or with other bytes somewhere."""
    position = random.randrange(len(data) + 1)
    if random.random() < 0.5:
        return data[:position]
    return data[:position] + random.randbytes(random.choice((1, 1, 2, 6))) + data[position + 1 :]


_RECORDS = {
    "offsets": (_coordinator_records, GROUP_COORDINATOR),
    "transaction-log": (_coordinator_records, TRANSACTION_COORDINATOR),
    "share-group-state": (_coordinator_records, SHARE_COORDINATOR),
    "cluster-metadata": (_framed_records, CLUSTER_METADATA),
    "remote-log-metadata": (_framed_records, REMOTE_LOG_METADATA),
}


@pytest.mark.parametrize("decoder", list(_RECORDS))
def test_every_type_and_version_is_printed_as_kafka_prints_it(decoder: str, tmp_path: Path) -> None:
    make, messages = _RECORDS[decoder]
    records = list(make(messages, random.Random(16)))
    with LogDirectory.open(tmp_path / "logs") as logs:
        log = logs.create("internal", 0)
        log.append(
            pa.table(
                {
                    "key": pa.array([record.key for record in records], pa.binary()),
                    "value": pa.array([record.value for record in records], pa.binary()),
                }
            )
        )
    (log_file,) = (tmp_path / "logs" / "internal-0").glob("*.log")

    printed = printed_by_the_tool(decoder, log_file)

    ours = printed_by_ours(decoder, ((offset, *record) for offset, record in enumerate(records)))
    assert len(printed) == len(records)
    assert {
        offset: (ours[offset], printed[offset]) for offset in ours if ours[offset] != printed[offset]
    } == {}
