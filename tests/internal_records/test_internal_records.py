"""Records of Kafka's internal topics: their texts, as ``kafka-dump-log.sh`` 4.1 prints them, and hostile bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError, UnsupportedFormatError
from storage_core.internal_records import internal_records
from storage_core.internal_records.internal_records import (
    MESSAGE_DECODERS,
    control_record_text,
    read_group_record,
    read_share_record,
)
from storage_core.internal_records.message_schema import json_text, read_message
from tests.examples import examples
from tests.internal_records.message_bytes import message_bytes, random_message

_OFFSET_KEY = b"\0\1" + b"\0\1g" + b"\0\6orders" + b"\0\0\0\3"
_OFFSET_KEY_TEXT = '{"type":"1","data":{"group":"g","topic":"orders","partition":3}}'
_MESSAGES = {
    name: message
    for messages in vars(internal_records).values()
    if isinstance(messages, dict)
    for name, message in messages.items()
    if hasattr(message, "highest_version") and name == message.name
}


def _texts(decoder, key, value, offset=7):
    return MESSAGE_DECODERS[decoder](key, value, offset)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            b"\0\0" + b"\0\0\0\0\0\0\0\5" + b"\0\1m" + b"\0\0\0\0\0\0\0\1",
            '{"version":"0","data":{"offset":5,"metadata":"m","commitTimestamp":1}}',
        ),
        (
            b"\0\1" + b"\0\0\0\0\0\0\0\5" + b"\0\0" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\0\0\0\0\x09",
            '{"version":"1","data":{"offset":5,"metadata":"","commitTimestamp":1,"expireTimestamp":9}}',
        ),
        (
            b"\0\3" + b"\0\0\0\0\0\0\0\5" + b"\xff\xff\xff\xff" + b"\0\0" + b"\0\0\0\0\0\0\0\1",
            '{"version":"3","data":{"offset":5,"leaderEpoch":-1,"metadata":"","commitTimestamp":1}}',
        ),
        (
            b"\0\4\0\0\0\0\0\0\0\5\0\0\0\2\2m\0\0\0\0\0\0\0\1\1\0\x10" + b"\1" * 16,
            (
                '{"version":"4","data":{"offset":5,"leaderEpoch":2,"metadata":"m","commitTimestamp":1,'
                '"topicId":"AQEBAQEBAQEBAQEBAQEBAQ"}}'
            ),
        ),
        (
            # A topic id of zeros, and a tag of a later version.
            b"\0\4" + b"\0\0\0\0\0\0\0\5" + b"\0\0\0\2" + b"\1" + b"\0\0\0\0\0\0\0\1"
            b"\2\0\x10" + bytes(16) + b"\5\3new",
            '{"version":"4","data":{"offset":5,"leaderEpoch":2,"metadata":"","commitTimestamp":1}}',
        ),
        (None, "<DELETE>"),
    ],
)
def test_versions_of_a_committed_offset(value, text):
    assert _texts("offsets", _OFFSET_KEY, value) == (_OFFSET_KEY_TEXT, text)


def test_members_of_a_classic_group_say_what_they_subscribe_to_and_have():
    subscription = b"\0\1" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff" + b"\0\0\0\0"
    assignment = b"\0\0" + b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1" + b"\0\0\0\2ud"
    value = (
        b"\0\0\0\x08consumer\0\0\0\4\0\5range\0\1a"
        b"\0\0\0\1\0\1a\0\1c\0\2/h\0\0\x75\x30"
        + len(subscription).to_bytes(4, "big")
        + subscription
        + len(assignment).to_bytes(4, "big")
        + assignment
    )
    key_text, text = _texts("offsets", b"\0\2\0\1g", value)
    assert key_text == '{"type":"2","data":{"group":"g"}}'
    assert text == (
        '{"version":"0","data":{"protocolType":"consumer","generation":4,"protocol":"range","leader":"a","members":['
        '{"memberId":"a","clientId":"c","clientHost":"/h","sessionTimeout":30000,'
        '"subscription":{"topics":["t"],"userData":null,"ownedPartitions":[]},'
        '"assignment":{"assignedPartitions":[{"topic":"t","partitions":[0,1]}],"userData":"dWQ="}}]}}'
    )


@pytest.mark.parametrize(("protocol", "data"), [(b"connect ", b"\0\0\0\0"), (b"consumer", b"\0")])
def test_other_protocols_and_malformed_subscriptions_stay_bytes(protocol, data):
    member = b"\0\1a\0\1c\0\2/h\0\0\0\1" + len(data).to_bytes(4, "big") + data + b"\0\0\0\0"
    value = b"\0\0\0\x08" + protocol + b"\0\0\0\4\xff\xff\xff\xff\0\0\0\1" + member
    _, text = _texts("offsets", b"\0\2\0\1g", value)
    shown = {b"\0\0\0\0": "AAAAAA==", b"\0": "AA=="}[data]
    assert f'"subscription":"{shown}","assignment":""' in text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (b"\0\x63later", b"\0\0", "Unknown record type 99 at offset 7, skipping."),
        (b"\0", b"\0\0", "Error at offset 7, skipping. Could not read version from key's buffer."),
        (_OFFSET_KEY, b"", "Error at offset 7, skipping. Could not read version from value's buffer."),
        (
            _OFFSET_KEY,
            b"\0\5",
            "Error at offset 7, skipping. Found an unknown record version 5 for 1 type",
        ),
        (
            b"\0\1\0\x09g",
            None,
            (
                "Error at offset 7, skipping. Could not read record with version 1 from key's buffer due to: "
                "Error reading byte array of 9 byte(s): only 1 byte(s) available."
            ),
        ),
        (
            b"\0\1\xff\xff",
            None,
            (
                "Error at offset 7, skipping. Could not read record with version 1 from key's buffer due to: "
                "non-nullable field group was serialized as null."
            ),
        ),
        (
            _OFFSET_KEY,
            b"\0\4\0",
            "Error at offset 7, skipping. Could not read record with version 4 from value's buffer due to: null.",
        ),
    ],
)
def test_errors_have_the_text_of_kafka(key, value, text):
    assert _texts("offsets", key, value) == (text, None)


@pytest.mark.parametrize("decoder", ["offsets", "transaction-log", "share-group-state"])
def test_a_record_of_a_coordinator_has_a_key(decoder):
    with pytest.raises(CorruptRecordError, match="no key"):
        _texts(decoder, None, b"\0\0")


def test_the_state_of_a_transaction():
    value = b"\0\1" + (9).to_bytes(8, "big") + b"\0\2" + b"\0\0\0\x3c" + b"\1" + b"\2\2t\3\0\0\0\0\0\0\0\1\0"
    value += (1000).to_bytes(8, "big") + (2000).to_bytes(8, "big") + b"\2" + b"\0\x08" + b"\0" * 7 + b"\x08"
    value += b"\2\2\0\2"
    assert _texts("transaction-log", b"\0\0\0\2tx", value) == (
        '{"type":"0","data":{"transactionalId":"tx"}}',
        (
            '{"version":"1","data":{"producerId":9,"previousProducerId":8,"producerEpoch":2,"transactionTimeoutMs":60,'
            '"transactionStatus":1,"transactionPartitions":[{"topic":"t","partitionIds":[0,1]}],'
            '"transactionLastUpdateTimestampMs":1000,"transactionStartTimestampMs":2000,"clientTransactionVersion":2}}'
        ),
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            b"\1\2\0" + b"\7orders" + b"\2" * 16 + b"\0",
            '{"type":"TOPIC_RECORD","version":0,"data":{"name":"orders","topicId":"AgICAgICAgICAgICAgICAg"}}',
        ),
        (b"\1\x14\0\0", '{"type":"NO_OP_RECORD","version":0,"data":{}}'),
        (
            b"\1\x0e\0" + b"\2\5user\0\0" + b"\2k" + b"\x41\x63\x12\xd0\0\0\0\0" + b"\0\0",
            (
                '{"type":"CLIENT_QUOTA_RECORD","version":0,"data":{"entity":[{"entityType":"user","entityName":null}],'
                '"key":"k","value":1.0E7,"remove":false}}'
            ),
        ),
        (b"\1\x14\0\0!", "Error at 7, skipping. Found 1 byte(s) of garbage after 20"),
        (b"\1\2\0\7", "Error at 7, skipping. Failed to deserialize record with type 2"),
        # A tag of version 1 in version 0.
        (
            b"\1\x11\0" + bytes(12) + b"\1\1\1\0",
            "Error at 7, skipping. Failed to deserialize record with type 17",
        ),
        (
            b"\1\x63\0",
            "Error at 7, skipping. org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id 99",
        ),
        (
            b"\2",
            (
                "Error at 7, skipping. Could not deserialize metadata record due to unknown frame version 2"
                "(only frame version 1 is supported)"
            ),
        ),
        (b"\xff\xff\xff\x0f", "Error at 7, skipping. Value for frame version was too large."),
        (b"", "Error at 7, skipping. Error while reading frame version"),
        (None, "Error at 7, skipping. Error while reading frame version"),
    ],
)
def test_records_of_the_metadata_log(value, text):
    assert _texts("cluster-metadata", b"ignored", value) == (None, text)


def test_records_of_share_groups():
    key = b"\0\1\0\1g" + b"\3" * 16 + b"\0\0\0\1"
    value = b"\0\0\0\0\0\1\0\0\0\2" + b"\xff" * 8 + b"\2" + bytes(8) + b"\0" * 7 + b"\5" + b"\2\0\1\0" + b"\0"
    assert _texts("share-group-state", key, value) == (
        '{"type":"1","data":{"groupId":"g","topicId":"AwMDAwMDAwMDAwMDAwMDAw","partition":1}}',
        (
            '{"version":"0","data":{"snapshotEpoch":1,"leaderEpoch":2,"startOffset":-1,'
            '"stateBatches":[{"firstOffset":0,"lastOffset":5,"deliveryState":2,"deliveryCount":1}]}}'
        ),
    )


def _remote_segment(
    *, start=0, end=9, epochs=b"\3\0\0\0\1\0\0\0\0\0\0\0\5\0\0\0\0\0" + bytes(8) + b"\0", state=1
):
    segment_id = b"\2t" + b"\1" * 16 + b"\0\0\0\4\0" + b"\2" * 16 + b"\0"
    numbers = start.to_bytes(8, "big", signed=True) + end.to_bytes(8, "big", signed=True) + b"\0\0\0\1"
    times = (11).to_bytes(8, "big") + (12).to_bytes(8, "big")
    return b"\1\0\0" + segment_id + numbers + times + epochs + b"\0\0\1\0" + b"\4abc" + bytes([state]) + b"\0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            _remote_segment(),
            (
                "RemoteLogSegmentMetadata{remoteLogSegmentId=RemoteLogSegmentId{topicIdPartition=AQEBAQEBAQEBAQEBAQEBAQ:t-4, "
                "id=AgICAgICAgICAgICAgICAg}, startOffset=0, endOffset=9, brokerId=1, maxTimestampMs=11, eventTimestampMs=12, "
                "segmentLeaderEpochs={0=0, 1=5}, segmentSizeInBytes=256, customMetadata=Optional[CustomMetadata{3 bytes}], "
                "state=COPY_SEGMENT_FINISHED, txnIdxEmpty=false}"
            ),
        ),
        (
            _remote_segment(start=-1),
            "Error at offset 7, skipping. Unexpected start offset = -1. StartOffset for a remote segment cannot be negative",
        ),
        (
            _remote_segment(start=10),
            (
                "Error at offset 7, skipping. Unexpected end offset = 9. EndOffset for a remote segment cannot be less than "
                "startOffset = 10"
            ),
        ),
        (
            _remote_segment(epochs=b"\1"),
            "Error at offset 7, skipping. segmentLeaderEpochs can not be null or empty",
        ),
        (_remote_segment(state=9), "Error at offset 7, skipping. state can not be null"),
        (
            b"\1\2\0" + b"\2t" + b"\1" * 16 + b"\0\0\0\4\0" + b"\0\0\0\1" + b"\0" * 7 + b"\3" + b"\2\0",
            (
                "RemotePartitionDeleteMetadata{topicPartition=AQEBAQEBAQEBAQEBAQEBAQ:t-4, state=DELETE_PARTITION_FINISHED, "
                "eventTimestampMs=3, brokerId=1}"
            ),
        ),
    ],
)
def test_records_of_tiered_storage(value, text):
    assert _texts("remote-log-metadata", None, value) == (None, text)


@pytest.mark.parametrize(
    ("type_id", "value", "text"),
    [
        (
            2,
            b"\0\0\0\0\0\1\2\0\0\0\1\0\1\0",
            'LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":1}],"grantingVoters":[]}',
        ),
        (
            3,
            b"\0\0\0\0\0\0\0\0\0\5\0",
            'SnapshotHeader {"version":0,"lastContainedLogTimestamp":5}',
        ),
        (4, b"\0\0\0", 'SnapshotFooter {"version":0}'),
        (5, b"\0\0\0\1\0", 'KRaftVersion {"version":0,"kRaftVersion":1}'),
        (0, b"\0\0\0\0\0\0", None),
        (99, b"", None),
    ],
)
def test_control_records_of_the_metadata_log(type_id, value, text):
    assert control_record_text(type_id, value) == text


def test_json_is_written_as_by_jackson():
    value = {
        "a": 'é€😀\u2028/"\\\n\x1b\x7f\\u001b',
        "b": [True, None, 1.0, 5e-324, -2.5e-7, float("nan")],
        "c": b"\xff",
    }
    assert json_text(value) == (
        '{"a":"é€😀\u2028/\\"\\\\\\n\\u001B\x7f\\\\u001b","b":[true,null,1.0,4.9E-324,-2.5E-7,"NaN"],"c":"/w=="}'
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xf0\x90\xedx", "\ufffd\ufffdx"),
        (b"\xc0\x80", "\ufffd\ufffd"),
    ],
)
def test_malformed_utf8_is_decoded_as_in_java(data, text):
    key = b"\0\3" + len(data).to_bytes(2, "big") + data
    assert _texts("offsets", key, None)[0] == f'{{"type":"3","data":{{"groupId":"{text}"}}}}'


@pytest.mark.parametrize("name", sorted(_MESSAGES))
def test_every_version_of_every_message_is_read_as_it_was_written(name):
    message, source = _MESSAGES[name], random.Random(16)
    for version in range(message.highest_version + 1):
        for _ in range(10):
            data = random_message(message, version, source)
            written = message_bytes(message, version, data)
            found, end = read_message(message, version, b"?" + written + b"?", 1)
            # Not a number is unequal to itself.
            assert json_text(found) == json_text(data)
            assert end == len(written) + 1


def test_every_key_has_a_value_of_its_type():
    keys = [name for name in _MESSAGES if name.endswith("Key")]
    assert len(keys) == 25
    for name in keys:
        assert _MESSAGES[name.removesuffix("Key") + "Value"].type_id == _MESSAGES[name].type_id


@given(
    st.binary(max_size=200), st.none() | st.binary(max_size=200), st.sampled_from(sorted(MESSAGE_DECODERS))
)
@examples(300)
def test_any_bytes_have_a_text(key, value, decoder):
    texts = _texts(decoder, key, value)
    assert any(texts)


@given(st.sampled_from(sorted(_MESSAGES)), st.integers(0, 5), st.binary(max_size=300))
@examples(300)
def test_hostile_bytes_are_read_or_refused(name, version, data):
    message = _MESSAGES[name]
    try:
        _, end = read_message(message, version, data)
    except CorruptRecordError:
        return
    assert end <= len(data)


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\0\0\0\x09"])
def test_a_length_beyond_the_bytes_is_refused_before_anything_is_made(length):
    message = _MESSAGES["ConsumerProtocolAssignment"]
    with pytest.raises(CorruptRecordError, match="Tried to allocate a collection of size"):
        read_message(message, 0, length + bytes(8))


def test_later_versions_are_told_from_damage():
    with pytest.raises(UnsupportedFormatError, match="record type 99"):
        read_group_record(b"\0\x63", None)
    with pytest.raises(UnsupportedFormatError, match="record version 9"):
        read_group_record(_OFFSET_KEY, b"\0\x09")
    with pytest.raises(CorruptRecordError, match="key's buffer"):
        read_share_record(b"\0\0\0", None)
    record = read_group_record(_OFFSET_KEY, None)
    assert (record.name, record.key, record.value) == (
        "OffsetCommit",
        {"group": "g", "topic": "orders", "partition": 3},
        None,
    )
