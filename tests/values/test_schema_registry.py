"""What the topic of a schema registry says: schemas, states, ids, GUIDs, references, and which one a topic is read with."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core import read_table
from storage_core.errors import SchemaError
from storage_core.values.registered_schema import SchemaReference
from storage_core.values.schema_registry import INDEX_FILE, read_registry, registry_of_files
from tests.examples import examples
from tests.values.registry_records import RegistryLog, karapace_key, record_key, schema_value
from tests.values.typed_logs import expected_values


@pytest.fixture
def log():
    return RegistryLog()


@pytest.fixture(scope="module")
def registry_of_logs(typed_logs):
    rows = read_table(typed_logs, subscribe="_schemas", columns=["offset", "key", "value"]).to_pylist()
    return read_registry((row["offset"], 0, row["key"], row["value"]) for row in rows)


def _versions(registry):
    return [(each.subject, each.version, each.schema_id, each.state) for each in registry.schemas]


# The topic of the recorded log directory.


def test_the_recorded_topic_has_the_schemas_that_are_expected(registry_of_logs):
    found = [
        {
            "subject": each.subject,
            "version": each.version,
            "id": each.schema_id,
            "type": each.schema_type,
            "state": each.state,
            "guid": each.guid,
        }
        for each in registry_of_logs.schemas
    ]
    expected = expected_values()["registry"]
    assert found == expected["schemas"]
    assert list(registry_of_logs.unreadable_offsets) == expected["unreadable_offsets"]
    assert registry_of_logs.unknown_count == 1
    duplicates = [
        [schema_id, *([schema.subject, schema.version] for schema in schemas)]
        for (_, schema_id), schemas in registry_of_logs.duplicate_ids.items()
    ]
    assert duplicates == expected["duplicate_ids"]


@pytest.mark.parametrize("topic", sorted(expected_values()["topics"]))
def test_the_recorded_topics_are_read_with_the_schema_that_is_expected(registry_of_logs, topic):
    expected = expected_values()["topics"][topic]
    value, key = registry_of_logs.reader_schema(topic), registry_of_logs.reader_schema(topic, is_key=True)
    assert (value and value.subject) == expected["value_subject"]
    assert (value and value.schema_id) == expected["value_schema_id"]
    assert (key and key.subject) == expected["key_subject"]
    known = {"avro-context": (".staging",), "json-plain": (".", ".staging")}
    assert registry_of_logs.contexts_of(topic) == known.get(topic, (".",))


def test_the_encrypted_schemas_of_the_recorded_topic_are_told_from_the_others(registry_of_logs):
    versions = {
        each.version: each.is_encrypted for each in registry_of_logs.schemas if "encrypted" in each.subject
    }
    assert versions == {1: False, 2: True, 3: True, 4: False}


def test_a_guid_of_the_recorded_topic_is_found_by_what_is_stored_if_not_by_its_text(registry_of_logs):
    schema = registry_of_logs.by_name("e5052347-b111-e10f-b045-233c383f50cd")
    assert (schema.subject, schema.version) == ("avro-header-guid-value", 3)
    assert schema.guid != "e5052347-b111-e10f-b045-233c383f50cd"
    assert registry_of_logs.by_name(schema.guid) == schema
    assert registry_of_logs.by_name("00000000-0000-0000-0000-000000000000") is None


def test_a_registry_is_the_same_after_a_pickle(registry_of_logs):
    assert pickle.loads(pickle.dumps(registry_of_logs)) == registry_of_logs


# States.


def test_keys_in_any_order_and_with_other_fields_are_one_version(log):
    log.add(karapace_key("a-value", 1), schema_value("a-value", 1, 3))
    log.add(record_key("a-value", 1, seq=4, node=0), schema_value("a-value", 1, 3, deleted=True))
    log.add(record_key("b-value", 1, seq=4, node=0), schema_value("b-value", 1, 4))
    log.add(karapace_key("b-value", 1), None)
    assert _versions(read_registry(log.records)) == [
        ("a-value", 1, 3, "soft-deleted"),
        ("b-value", 1, 4, "tombstoned"),
    ]


def test_a_deleted_subject_is_deleted_up_to_the_version_named_and_no_later_record_is(log):
    for version in (1, 2, 3):
        log.register("a", version, version)
    log.delete_subject("a", 2)
    log.register("a", 4, 4)
    log.register("a", 1, 1)
    log.register("b", 1, 5)
    states = {each.version: each.state for each in read_registry(log.records).schemas if each.subject == "a"}
    assert states == {1: "live", 2: "soft-deleted", 3: "live", 4: "live"}
    log.delete_subject("a", 1)
    log.delete_subject("a", 4)
    states = {each.version: each.state for each in read_registry(log.records).schemas if each.subject == "a"}
    assert set(states.values()) == {"soft-deleted"}


_steps = st.lists(
    st.tuples(st.sampled_from(["register", "register", "soft", "tombstone", "subject"]), st.integers(1, 4)),
    max_size=14,
)


@examples(300)
@given(_steps)
def test_any_order_of_registrations_and_deletions_gives_the_state_of_a_replay(steps):
    log, states = RegistryLog(), {}
    for step, version in steps:
        match step:
            case "register":
                log.register("s", version, version)
                states[version] = "live"
            case "soft":
                log.register("s", version, version, deleted=True)
                states[version] = "soft-deleted"
            case "tombstone":
                log.tombstone("s", version)
                states[version] = "tombstoned"
            case _:
                log.delete_subject("s", version)
                states |= {
                    each: "soft-deleted"
                    for each, state in states.items()
                    if each <= version and state == "live"
                }
    registry = read_registry(log.records)
    assert {each.version: each.state for each in registry.schemas} == states
    assert len(registry.schemas) == len(states)


def test_a_schema_whose_version_has_another_id_now_stays(log):
    first = log.register("a", 1, 10, '"int"')
    log.tombstone("a", 1)
    log.register("a", 1, 20, '"long"')
    log.register("a", 1, 20, '"long"', deleted=True)
    registry = read_registry(log.records)
    assert _versions(registry) == [("a", 1, 10, "tombstoned"), ("a", 1, 20, "soft-deleted")]
    assert registry.by_name(10).offset == first
    assert registry.reader_schema("-", subject="a").schema_id == 20


def test_a_version_that_has_an_earlier_id_again_is_one_row_for_each_id(log):
    for schema_id in (10, 20, 10, 20, 10):
        log.register("a", 1, schema_id, f'"{schema_id}"')
    assert _versions(read_registry(log.records)) == [("a", 1, 20, "tombstoned"), ("a", 1, 10, "live")]


def test_only_a_tombstone_leaves_a_version_without_text(log):
    offset = log.tombstone("gone", 2)
    registry = read_registry(log.records)
    (schema,) = registry.schemas
    assert (schema.schema_id, schema.text, schema.guid, schema.state) == (None, None, None, "tombstoned")
    assert (schema.offset, schema.timestamp_ms) == (offset, 1_000 + offset)
    with pytest.raises(SchemaError, match="Only the tombstone of gone version 2"):
        registry.source_of(schema)


def test_settings_are_those_of_the_last_record_of_their_subject(log):
    log.add(record_key(None, keytype="CONFIG"), b'{"compatibilityLevel":"NONE"}')
    log.add(record_key("a", keytype="CONFIG"), b'{"compatibilityLevel":"FULL"}')
    log.add(record_key(None, keytype="CONFIG"), b'{"compatibilityLevel":"BACKWARD"}')
    log.add(record_key("a", keytype="MODE"), b'{"mode":"READONLY"}')
    log.add(record_key("a", keytype="CONFIG"), None)
    registry = read_registry(log.records)
    assert registry.configs == {None: '{"compatibilityLevel": "BACKWARD"}'}
    assert registry.modes == {"a": '{"mode": "READONLY"}'}


# Ids and contexts.


def test_an_id_is_unique_in_its_context(log):
    log.register("a-value", 1, 7, '"int"')
    log.register(":.other:a-value", 1, 7, '"long"')
    registry = read_registry(log.records)
    assert registry.by_name(7).text == '"int"'
    assert registry.by_name(7, (".other",)).text == '"long"'
    assert registry.by_name(8) is None
    assert registry.duplicate_ids == {}


def test_of_several_schemas_with_an_id_the_topics_own_is_preferred_then_the_first(log):
    log.register("late-value", 1, 7, '"int"')
    log.register("own-value", 1, 7, '"long"')
    log.register("own-value", 2, 8, '{"type": "int", "x": 1}')
    log.register("same-value", 1, 8, '{"x":1,"type":"int"}')
    registry = read_registry(log.records)
    assert registry.by_name(7).subject == "late-value"
    assert registry.by_name(7, subject="own-value").text == '"long"'
    assert registry.by_name(7, subject="third-value").subject == "late-value"
    assert list(registry.duplicate_ids) == [(".", 7)]
    assert [each.subject for each in registry.duplicate_ids[".", 7]] == ["late-value", "own-value"]


def test_a_topic_is_in_the_contexts_that_have_its_subjects(log):
    log.register(":.one:a-value", 1, 1)
    log.register(":.one:b-key", 1, 2)
    log.register("c-value", 1, 1)
    log.register(":.one:c-value", 1, 3)
    log.register(":.one:d-value", 1, 4)
    log.register(":.two:d-value", 1, 4)
    log.register(":.two:e-com.acme.Order", 1, 5)
    registry = read_registry(log.records)
    contexts = {topic: registry.contexts_of(topic) for topic in "abcde"}
    every = (".", ".one", ".two")
    assert contexts == {"a": (".one",), "b": every, "c": (".", ".one"), "d": (".one", ".two"), "e": (".two",)}
    # A subject of values says nothing of keys, which another serializer may have written.
    assert [registry.contexts_of(topic, is_key=True) for topic in "abe"] == [every, (".one",), (".two",)]
    assert registry.contexts_of("a", subject=":.two:x") == (".two",)
    assert registry.contexts_of("a", subject="x") == (".",)
    assert registry.reader_schema("c").subject == "c-value"
    with pytest.raises(
        SchemaError, match=r"several contexts: :\.one:d-value, :\.two:d-value\. Name one as valueSubject"
    ):
        registry.reader_schema("d")
    assert registry.reader_schema("d", subject=":.two:d-value").subject == ":.two:d-value"
    assert registry.reader_schema("x", subject=":.one:d-value", schema_id=2).subject == ":.one:b-key"


def test_a_context_may_be_named_alone_and_the_default_one_in_full(log):
    log.register("t-value", 1, 7, '"int"')
    log.register(":.one:t-value", 1, 7, '"long"')
    registry = read_registry(log.records)
    for subject, text in ((":.one:", '"long"'), (":.:", '"int"'), (":.:t-value", '"int"')):
        assert registry.reader_schema("t", subject=subject).text == text
        assert registry.reader_schema("t", subject=subject, schema_id=7).text == text
    assert registry.reader_schema("u", subject=":.one:") is None


def test_contexts_whose_schemas_are_only_in_one_are_not_looked_for_in_another(log):
    log.register(":.one:com.acme.Order", 1, 7, '"long"')
    registry = read_registry(log.records)
    assert registry.contexts_of("orders") == (".one",)
    assert registry.by_name(7, registry.contexts_of("orders")).text == '"long"'
    assert read_registry([]).contexts_of("orders") == (".",)


def test_an_id_of_several_contexts_is_read_only_if_it_is_the_same_schema_in_all(log):
    log.register("com.acme.Order", 1, 7, '{"type": "int"}')
    log.register(":.one:com.acme.Order", 1, 7, '{"type":"int"}')
    log.register(":.one:com.acme.Order", 2, 8, '"int"')
    log.register("com.acme.Payment", 1, 9, '"int"')
    log.register(":.one:com.acme.Order", 3, 9, '"long"')
    registry = read_registry(log.records)
    contexts = registry.contexts_of("orders")
    assert registry.by_name(7, contexts).subject == "com.acme.Order"
    assert registry.by_name(8, contexts).subject == ":.one:com.acme.Order"
    assert registry.by_name(9, (".",)).text == '"int"'
    with pytest.raises(SchemaError) as raised:
        registry.by_name(9, contexts)
    assert str(raised.value) == (
        "Id 9 is that of different schemas in several contexts: com.acme.Payment version 1 (id 9, live), "
        ":.one:com.acme.Order version 3 (id 9, live). Name the context of the records, as valueSubject=:.one: or "
        "valueSubject=:.: for the default one (keySubject for keys)."
    )
    with pytest.raises(SchemaError, match="Id 9 is that of different schemas"):
        registry.reader_schema("orders", schema_id=9)
    assert registry.reader_schema("orders", schema_id=9, subject=":.one:").text == '"long"'


@pytest.mark.parametrize(
    "other", [{"schemaType": "JSON"}, {"ruleSet": {"domainRules": [{"type": "ENCRYPT"}]}}, {}]
)
def test_the_same_text_is_another_schema_by_its_type_its_rules_or_its_references(log, other):
    references = [] if other else [("Geo", "geo", 1)]
    log.register("geo", 1, 1, "G")
    log.register(":.one:geo", 1, 2, "H")
    log.register("t", 1, 7, "T", references=references)
    log.register(":.one:t", 1, 7, "T", references=references, **other)
    registry = read_registry(log.records)
    with pytest.raises(SchemaError, match="Id 7 is that of different schemas"):
        registry.by_name(7, (".", ".one"))


def test_a_guid_of_several_contexts_is_that_of_the_topics_own_one(log):
    log.register("geo", 1, 1, "G")
    log.register(":.one:geo", 1, 1, "H")
    log.register("t", 1, 2, "T", references=[("Geo", "geo", 1)])
    log.register(":.one:t", 1, 2, "T", references=[("Geo", "geo", 1)])
    registry = read_registry(log.records)
    guid = registry.by_name(2).guid
    assert [registry.by_name(guid, (context,)).subject for context in (".", ".one")] == ["t", ":.one:t"]
    with pytest.raises(SchemaError, match=f"GUID {guid} is that of different schemas"):
        registry.by_name(guid, (".two",))


# Which schema a topic is read with.


def test_the_latest_live_version_is_read_with_then_the_latest_deleted_one(log):
    for version in (1, 2, 3, 4):
        log.register("t-value", version, version)
    log.register("t-value", 3, 3, deleted=True)
    log.tombstone("t-value", 4)
    registry = read_registry(log.records)
    assert registry.reader_schema("t").version == 2
    log.delete_subject("t-value", 2)
    assert read_registry(log.records).reader_schema("t").version == 3
    for version in (1, 2, 3):
        log.tombstone("t-value", version)
    assert read_registry(log.records).reader_schema("t").version == 4


def test_another_version_id_or_subject_may_be_named(log):
    log.register("t-value", 1, 1)
    log.register("t-value", 2, 2)
    log.register("other", 5, 9)
    registry = read_registry(log.records)
    assert registry.reader_schema("t", version=1).schema_id == 1
    assert registry.reader_schema("t", schema_id=9).subject == "other"
    assert registry.reader_schema("t", subject="other").schema_id == 9
    assert registry.reader_schema("t", is_key=True) is None
    assert registry.reader_schema("u") is None


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"version": 3}, r"Subject t-value has no version 3\. Known versions: 1, 2\."),
        ({"schema_id": 3}, r"No schema has the id 3 in the default context\. Known ids: 1, 2\."),
        ({"subject": "u"}, r"There is no subject u\. Known subjects: t-value\."),
        ({"subject": ":.c:u", "schema_id": 1}, r"No schema has the id 1 in context \.c\. Known ids: none\."),
    ],
)
def test_an_error_says_what_there_is_instead(log, named, message):
    log.register("t-value", 1, 1)
    log.register("t-value", 2, 2)
    with pytest.raises(SchemaError, match=message):
        read_registry(log.records).reader_schema("t", **named)


# References.


def test_references_come_before_what_needs_them_and_each_name_once(log):
    log.register("geo", 1, 1, "G")
    log.register("address", 1, 2, "A", references=[("Geo", "geo", 1)])
    log.register("t-value", 1, 3, "T", references=[("Address", "address", 1), ("Geo", "geo", 1)])
    registry = read_registry(log.records)
    source = registry.source_of(registry.by_name(3))
    assert (source.text, source.references) == ("T", (("Geo", "G"), ("Address", "A")))


def test_references_are_in_the_same_context_unless_they_name_another(log):
    log.register("geo", 1, 1, "default")
    log.register(":.c:geo", 1, 1, "own")
    log.register(":.d:geo", 1, 1, "other")
    log.register(":.c:t", 1, 3, "T", references=[("a", "geo", 1), ("b", ":.d:geo", 1), ("c", ":.:geo", 1)])
    registry = read_registry(log.records)
    references = registry.source_of(registry.by_name(3, (".c",))).references
    # So does Confluent's ``QualifiedSubject.qualifySubjectWithParent``, also with the default context.
    assert references == (("a", "own"), ("b", "other"), ("c", "own"))


def test_a_tombstoned_schema_is_still_referred_to_and_a_missing_one_is_named(log):
    log.register("geo", 1, 1, "G")
    log.tombstone("geo", 1)
    log.register("t", 1, 2, "T", references=[("Geo", "geo", 1)])
    log.register("u", 1, 3, "U", references=[("Geo", "geo", 9)])
    registry = read_registry(log.records)
    assert registry.source_of(registry.by_name(2)).references == (("Geo", "G"),)
    with pytest.raises(
        SchemaError, match=r"u version 1 \(id 3, live\) refers to geo version 9, which is not in"
    ):
        registry.source_of(registry.by_name(3))


def test_circles_endless_chains_and_too_many_references_are_errors(log):
    log.register("a", 1, 1, references=[("b", "b", 1)])
    log.register("b", 1, 2, references=[("a", "a", 1)])
    for version in range(1, 100):
        log.register("chain", version, 100 + version, references=[(f"n{version}", "chain", version + 1)])
    log.register("many", 1, 3, references=[(f"m{number}", "end", 1) for number in range(1_001)])
    log.register("end", 1, 4)
    registry = read_registry(log.records)
    with pytest.raises(SchemaError, match=r"circle: a version 1 .* → b version 1 .* → a version 1"):
        registry.source_of(registry.by_name(1))
    with pytest.raises(SchemaError, match="deeper than 50"):
        registry.source_of(registry.by_name(101))
    with pytest.raises(SchemaError, match="more than 1,000 schemas"):
        registry.source_of(registry.by_name(3))


def test_references_that_branch_at_each_level_are_followed_once(log):
    for level in range(40):
        log.register(
            "level", level, level, references=[(f"{level + 1}{side}", "level", level + 1) for side in "ab"]
        )
    log.register("level", 40, 40)
    registry = read_registry(log.records)
    began = time.process_time()
    assert len(registry.source_of(registry.by_name(0)).references) <= 80
    assert time.process_time() - began < 5


# GUIDs.


def _guid(*parts):
    return str(uuid.UUID(bytes=hashlib.md5(b"".join(parts)).digest()))


def test_the_guid_of_a_text_is_that_of_confluents_own_test(log):
    text = '{"type":"record","name":"myrecord","fields":[{"type":"string","default":null,"name":"f"}]}'
    log.register("t", 1, 1, text)
    assert read_registry(log.records).by_name(1).guid == "1d20cbb9-e5e3-5e97-54e7-da170b6e5ddb"


def test_the_guid_covers_references_metadata_and_rules(log):
    rule = {
        "name": "n", "doc": "d", "kind": "TRANSFORM", "mode": "WRITE", "type": "CEL", "tags": ["b", "a"],
        "params": {"y": "2", "x": "1"}, "expr": "e", "onSuccess": "s", "onFailure": "f", "disabled": True,
    }  # fmt: skip
    metadata = {
        "tags": {"t2": ["z", "a"], "t1": []},
        "properties": {"p2": "v2", "p1": "v1"},
        "sensitive": ["s2", "s1"],
    }
    log.register("t", 1, 1, "é", references=[("r", "geo", 258)])
    log.register("t", 2, 2, "T", metadata=metadata)
    rules = {
        "domainRules": [rule],
        "migrationRules": [{"name": "m"}],
        "encodingRules": [{"type": "E"}],
        "enableAt": "CLIENT",
    }
    log.register("t", 3, 3, "T", ruleSet=rules)
    log.register("t", 4, 4, "T", metadata={}, ruleSet={})
    guids = [each.guid for each in read_registry(log.records).schemas]
    assert guids == [
        _guid("é".encode(), b"rgeo", b"\0\0\1\2"),
        _guid(b"T", b"\1", b"t1t2az", b"p1v1p2v2", b"s1s2"),
        _guid(
            b"T",
            b"\1",
            b"mTRANSFORMWRITEREAD",
            b"ndTRANSFORMWRITECELabx1y2esf",
            b"\1",
            b"TRANSFORMWRITEREADE",
            b"CLIENT",
        ),
        _guid(b"T", b"\1\1"),
    ]


@pytest.mark.parametrize("md5", ["", "AAAA", "not base64!", "é"])
def test_a_stored_hash_that_is_none_is_not_used(log, md5):
    log.register("t", 1, 1, md5=md5)
    registry = read_registry(log.records)
    assert len(registry.by_name(1).guids) == 1
    assert registry.by_name(registry.by_name(1).guid) == registry.by_name(1)


@pytest.mark.parametrize(
    ("rules", "is_encrypted"),
    [
        ({"domainRules": [{"type": "ENCRYPT"}]}, True),
        ({"encodingRules": [{"type": "ENCRYPT_PAYLOAD", "kind": "TRANSFORM"}]}, True),
        ({"domainRules": [{"type": "ENCRYPT", "disabled": True}]}, False),
        ({"domainRules": [{"type": "ENCRYPT", "kind": "CONDITION"}]}, False),
        ({"domainRules": [{"type": "CEL"}, "no rule", None], "encodingRules": "none"}, False),
        ({"domainRules": [{"type": ["ENCRYPT"], "kind": {}, "disabled": [1]}]}, False),
        ({}, False),
    ],
)
def test_a_schema_is_encrypted_if_a_rule_that_counts_says_so(log, rules, is_encrypted):
    log.register("t", 1, 1, ruleSet=rules)
    assert read_registry(log.records).by_name(1).is_encrypted is is_encrypted


# Records that are not what a registry writes.

_GOOD = {"subject": "t", "version": 1, "id": 1, "schema": "T"}
_BAD_VALUES = [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff{}", b'{"a":1}{"a":1}', b"\xef\xbb\xbf{}", b"[" * 100_000,
    b'{"id":' + b"9" * 5_000 + b"}",
    *(
        json.dumps({**_GOOD, **changed}).encode()
        for changed in (
            {"id": None}, {"id": -1}, {"id": 1 << 31}, {"id": "1"}, {"id": True}, {"id": 1.0}, {"schema": None}, {"schema": {}},
            {"schema": "\ud800"}, {"references": [1]}, {"references": {"a": 1}}, {"references": 5},
            {"references": [{"name": "n", "subject": "s", "version": -1}]}, {"metadata": []}, {"ruleSet": "r"}, {"md5": 5},
            {"schemaType": ["AVRO"]}, {"schemaType": "\udc00"},
        )
    ),
]  # fmt: skip
_BAD_KEYS = [
    None, b"", b"not json", b"[]", b"{}", b'{"keytype":["SCHEMA"]}', b'{"keytype":{}}', b'{"keytype":null}',
    b'{"keytype":"SCHEMA"}', b'{"keytype":"SCHEMA","subject":null,"version":1}', b'{"keytype":"SCHEMA","subject":"a","version":"1"}',
    b'{"keytype":"SCHEMA","subject":"a","version":99999999999}', b'{"keytype":"CONFIG","subject":[1]}', b'{"keytype":"CONFIG","subject":"\\ud800"}', b"\xff" * 10,
    b'{"keytype":"SCHEMA","subject":"\\ud800","version":1}', b'{"a":' * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("value", _BAD_VALUES, ids=range(len(_BAD_VALUES)))
def test_a_value_that_cannot_be_read_is_counted_and_stops_nothing(log, value):
    log.register("before", 1, 7)
    bad = log.add(record_key("t", 1), value)
    log.register("after", 1, 8)
    registry = read_registry(log.records)
    assert registry.unreadable_offsets == (bad,)
    assert [each.subject for each in registry.schemas] == ["after", "before"]
    assert [each.guid for each in registry.schemas]


@pytest.mark.parametrize("key", _BAD_KEYS, ids=range(len(_BAD_KEYS)))
def test_a_key_that_cannot_be_read_is_counted_and_stops_nothing(log, key):
    bad = log.add(key, schema_value("t", 1, 1))
    log.register("after", 1, 8)
    registry = read_registry(log.records)
    assert registry.unreadable_offsets == (bad,)
    assert [each.subject for each in registry.schemas] == ["after"]


def test_texts_that_do_not_fit_into_memory_are_one_clear_error(log, monkeypatch):
    monkeypatch.setattr("storage_core.values.schema_registry._MOST_CHARACTERS", 2_000)
    for _ in range(20):
        for schema_id in (1, 2):
            # Each takes the place of the one before.
            log.register("t", 1, schema_id, "x" * 500)
    assert len(read_registry(log.records).schemas) == 2
    log.register("u", 1, 3, "x" * 500)
    with pytest.raises(SchemaError, match=r"more than 2,000 characters\. Name a folder"):
        read_registry(log.records)


def test_kinds_that_do_not_matter_are_passed_over_and_others_are_counted(log):
    for kind in ("NOOP", "CLEAR_SUBJECT", "CONTEXT", "ASSOC", "NEW_KIND"):
        log.add(record_key("t", keytype=kind), b"no json")
        log.add(record_key("t", keytype=kind), None)
    registry = read_registry(log.records)
    assert (registry.schemas, registry.unreadable_offsets, registry.unknown_count) == ((), (), 2)


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tags", "name", "type", "x", "domainRules", "params", "sensitive", "kind"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
_fields = st.dictionaries(
    st.sampled_from(
        [
            "keytype",
            "subject",
            "version",
            "id",
            "schema",
            "schemaType",
            "references",
            "metadata",
            "ruleSet",
            "md5",
            "deleted",
        ]
    ),
    _json_values,
)
_bytes = st.none() | st.binary(max_size=10) | _fields.map(lambda fields: json.dumps(fields).encode())
_kinds = st.sampled_from(["SCHEMA", "DELETE_SUBJECT", "CONFIG", "MODE"])


@examples(100)
@given(st.lists(st.tuples(_kinds, _fields, _bytes), max_size=6))
def test_no_record_stops_the_read_or_what_is_asked_afterwards(records):
    log = RegistryLog()
    for kind, fields, value in records:
        log.add(json.dumps({"keytype": kind, "subject": "t-value", "version": 1, **fields}).encode(), value)
        good = {"id": 1, "schema": "T", **fields}
        log.add(record_key("t-value", 1), json.dumps(good).encode())
    registry = read_registry(log.records)
    for schema in registry.schemas:
        assert (schema.guid is None) == (schema.text is None)
        assert schema.is_encrypted in {True, False}
    registry.by_name("")
    assert registry.reader_schema("t") is not None or not any(
        each.text for each in registry.schemas if each.subject == "t-value"
    )
    assert pickle.loads(pickle.dumps(registry)) == registry


@pytest.mark.thorough
def test_deletions_and_duplicates_by_the_ten_thousand_take_time_in_proportion(log):
    for version in range(1, 20_000):
        log.register("t", version, 7, f'"text {version}"', references=[("r", "r", 1)])
        log.delete_subject("t", 20_000 - version)
    log.register("r", 1, 8, "R")
    began = time.process_time()
    registry = read_registry(log.records)
    assert len(registry.schemas) == 20_000
    assert len(registry.duplicate_ids[".", 7]) == 19_999
    assert registry.source_of(registry.schemas[-1]).references == (("r", "R"),)
    assert time.process_time() - began < 30


# A folder of schema files.


def test_files_that_are_named_by_id_are_schemas_and_others_what_they_refer_to():
    files = {
        "17.avsc": "T", "com.acme.Geo.avsc": "G", "18.proto": "P", "common.proto": "C", "19.json": "J", "README.md": "-",
        "٣.avsc": "no id", "99999999999.avsc": "too large",
    }  # fmt: skip
    registry = registry_of_files(files)
    assert [registry.by_name(schema_id).schema_type for schema_id in (17, 18, 19)] == [
        "AVRO",
        "PROTOBUF",
        "JSON",
    ]
    references = dict(registry.source_of(registry.by_name(17)).references)
    assert references["com.acme.Geo"] == "G"
    assert registry.source_of(registry.by_name(18)).references == (("common.proto", "C"),)
    assert registry.source_of(registry.by_name(19)).references == ()
    assert registry.reader_schema("t") is None
    assert registry.reader_schema("t", schema_id=17).text == "T"


_ENTRY = {"subject": "a", "version": 1, "id": 1, "state": "live", "file": "1.avsc"}


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("", "Expecting value"),
        ("[]", "it is not a JSON object"),
        ("{}", "schemas is not a list"),
        ("[" * 100_000, "recursion"),
        ({"schemas": 5}, "schemas is not a list"),
        ({"schemas": [5]}, "a schema is not a JSON object"),
        ({"schemas": [{}]}, "subject is not a text"),
        ({"schemas": [{**_ENTRY, "state": "odd"}]}, "state 'odd'"),
        ({"schemas": [{**_ENTRY, "state": ["live"]}]}, "state"),
        ({"schemas": [{**_ENTRY, "file": "../2.avsc"}]}, "../2.avsc is missing"),
        ({"schemas": [{**_ENTRY, "id": -1}]}, "id is not a number from 0 to 2147483647"),
        ({"schemas": [{**_ENTRY, "offset": "1"}]}, "offset is not a number"),
        ({"schemas": [{**_ENTRY, "references": {"a": 1}}]}, "references is not a list"),
        ({"schemas": [{**_ENTRY, "md5": 1}]}, "md5 is not a text"),
        ({"schemas": [], "modes": [{"subject": [], "value": {}}]}, "subject is not a text"),
        ({"schemas": [], "configs": [{"subject": "a", "value": 5}]}, "its value is not a JSON object"),
        ({"schemas": [], "configs": [{"value": {}}]}, "a setting has no subject"),
    ],
)
def test_an_index_that_is_none_is_an_error_that_says_why(index, message):
    text = index if isinstance(index, str) else json.dumps(index)
    with pytest.raises(
        SchemaError, match=rf"schemas\.json is not an index of schemas: .*{re.escape(message)}.*\."
    ):
        registry_of_files({INDEX_FILE: text, "1.avsc": "T"})


def test_an_index_gives_files_their_subjects_versions_and_references():
    entries = [
        {"subject": "geo", "version": 1, "id": 1, "state": "live", "file": "1.avsc"},
        {
            "subject": "t-value", "version": 4, "id": 2, "state": "soft-deleted", "file": "2.avsc",
            "references": [{"name": "Geo", "subject": "geo", "version": 1}],
        },
    ]  # fmt: skip
    registry = registry_of_files({INDEX_FILE: json.dumps({"schemas": entries}), "1.avsc": "G", "2.avsc": "T"})
    schema = registry.reader_schema("t")
    assert (schema.version, schema.state, schema.references) == (
        4,
        "soft-deleted",
        (SchemaReference("Geo", "geo", 1),),
    )
    assert registry.source_of(schema).references == (("Geo", "G"),)
