"""Which schema columns are read with, and which schemas of writers are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import storage_core
from storage_core.dump.follow import LogFollower
from storage_core.errors import OptionError, SchemaError, ValueDecodeError
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.read import read_schema
from storage_core.scan.typed_columns import PinnedFormats, plan_formats
from tests.values.written_logs import append, framed, record_schema, register

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from storage_core.options import ReadOptions

FIRST = record_schema(id="long")
SECOND = record_schema(id="long", note=("string", "none"))
OTHER = record_schema("Payment", id="long")


def options_of(logs: Path, **options: Any) -> ReadOptions:
    return parse_read_options(
        {"path": str(logs), "subscribe": "orders", "value_format": "registry", **options}
    )


def read(logs: Path, **options: Any) -> pa.Table:
    return storage_core.read_table(logs, **{"subscribe": "orders", "value_format": "registry", **options})


def values(logs: Path, **options: Any) -> list[Any]:
    found: list[Any] = read(logs, **options)["value"].to_pylist()
    return found


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a topic with records of two versions."""
    folder = tmp_path / "logs"
    register(folder, "orders-value", 1, 11, FIRST)
    register(folder, "orders-value", 2, 12, SECOND)
    append(
        folder,
        "orders",
        [(None, framed(11, FIRST, {"id": 1})), (None, framed(12, SECOND, {"id": 2, "note": "b"}))],
    )
    return folder


def test_the_latest_live_version_gives_the_columns(logs: Path) -> None:
    assert values(logs) == [{"id": 1, "note": "none"}, {"id": 2, "note": "b"}]


@pytest.mark.parametrize(
    "options",
    [
        {"value_schema_id": 11},
        {"value_schema_version": 1},
        {"value_subject": "orders-value", "value_schema_version": 1},
        {"value_schema": FIRST},
        {"value_schema": json.dumps(FIRST)},
    ],
)
def test_another_version_may_be_chosen(logs: Path, options: dict[str, Any]) -> None:
    assert values(logs, **options) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value_schema_id": 99}, "99"),
        ({"value_schema_version": 9}, "version 9"),
        ({"value_subject": "absent"}, "absent"),
    ],
)
def test_what_is_named_must_exist(logs: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read(logs, **options)


def test_without_a_live_version_a_deleted_one_is_taken_and_named(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register(logs, "orders-value", 1, 11, FIRST, deleted=True)
    register(logs, "orders-value", 2, 12, SECOND, deleted=True)

    assert values(logs)[0] == {"id": 1, "note": "none"}
    (notice,) = [text for text in caplog.messages if "no live version" in text]
    assert "orders-value version 2 (id 12, soft-deleted)" in notice


def test_without_a_subject_the_first_framed_record_decides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "logs"
    register(logs, "Payment", 1, 5, OTHER)
    register(logs, "Order", 1, 6, FIRST)
    append(
        logs,
        "orders",
        [
            (None, None),
            (None, b"text"),
            (None, framed(6, FIRST, {"id": 1})),
            (None, framed(5, OTHER, {"id": 2})),
        ],
    )

    table = read(logs, mode="PERMISSIVE")

    assert table["value"].to_pylist() == [None, None, {"id": 1}, None]
    reasons = [text and json.loads(text)["reason"] for text in table["_corrupt_record"].to_pylist()]
    assert reasons == [None, "unframed", None, "unresolvable"]
    (notice,) = [text for text in caplog.messages if "has no subject" in text]
    assert "Order version 1 (id 6)" in notice
    assert "valueSchemaId or valueSubject" in notice
    assert values(logs, value_subject="Payment", mode="DROPMALFORMED") == [None, {"id": 2}]


def test_a_topic_without_a_subject_and_frames_is_refused(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    register(logs, "Order", 1, 6, FIRST)
    append(logs, "orders", [(None, b"text")] * 3)

    with pytest.raises(
        OptionError, match=r"Topic orders has no subject orders-value .* valueSchemaId or valueSubject"
    ):
        read(logs)


def test_a_subject_that_a_topic_lacks_is_named_with_its_context(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "logs"
    register(logs, "orders-value", 1, 6, FIRST)
    register(logs, ":.a:Order", 1, 5, FIRST)
    append(logs, "orders", [(None, framed(5, FIRST, {"id": 1}))])

    assert values(logs, value_subject=":.a:") == [{"id": 1}]
    assert "Topic orders has no subject :.a:orders-value: its values are read with :.a:Order" in caplog.text
    with pytest.raises(OptionError, match=r"Topic orders has no subject :\.b:orders-value"):
        read(logs, value_subject=":.b:")


def test_a_topic_that_does_not_exist_is_named(logs: Path) -> None:
    for topics in ("ordres", "orders,ordres"):
        with pytest.raises(
            OptionError, match=r"names the topic 'ordres', which does not exist. Did you mean 'orders'"
        ):
            read(logs, subscribe=topics)


def test_a_topic_that_does_not_exist_yet_decides_nothing(logs: Path) -> None:
    later = PinnedFormats(FileSystem(), options_of(logs, subscribe="orders,absent"))

    assert later.ids == {"value": 12}


def test_without_the_registrys_topic_the_option_is_named(tmp_path: Path) -> None:
    append(tmp_path / "logs", "orders", [(None, b"text")])

    with pytest.raises(SchemaError, match="schemasPath"):
        read(tmp_path / "logs")


def test_topics_with_different_schemas_are_listed(logs: Path) -> None:
    register(logs, "payments-value", 1, 20, OTHER)
    append(logs, "payments", [(None, framed(20, OTHER, {"id": 1}))])
    append(logs, "plain", [(None, b"x")])

    with pytest.raises(
        OptionError, match=r"different schemas: orders \(orders-value version 2 \(id 12\)\)"
    ) as raised:
        read(logs, subscribe="orders,payments,plain")
    assert "payments (payments-value version 1 (id 20)), plain (no schema)" in str(raised.value)
    assert "subscribe=orders" in str(raised.value)


@pytest.mark.parametrize("others", [{}, {"subscribe_pattern": "."}])
def test_the_registrys_topic_is_read_only_if_it_is_named(logs: Path, others: dict[str, str]) -> None:
    table = storage_core.read_table(logs, value_format="registry", columns=["topic"], **others)
    assert set(table["topic"].to_pylist()) == {"orders", "_schemas"}

    table = storage_core.read_table(logs, value_format="registry", **others)

    assert table["topic"].to_pylist() == ["orders", "orders"]
    with pytest.raises(OptionError, match=r"_schemas \(no schema\)"):
        storage_core.read_table(logs, subscribe="orders,_schemas", value_format="registry")


def test_topics_with_the_same_schema_are_read_together(logs: Path) -> None:
    register(logs, "copies-value", 1, 12, SECOND)
    append(logs, "copies", [(None, framed(12, SECOND, {"id": 3, "note": "c"}))])

    table = read(logs, subscribe="orders,copies")

    assert [value["id"] for value in table["value"].to_pylist()] == [3, 1, 2]


def test_schemas_may_lie_elsewhere(logs: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    append(backup, "orders", [(None, framed(11, FIRST, {"id": 1}))])
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "11.avsc").write_text(json.dumps(FIRST))

    assert values(backup, schemas_path=str(logs)) == [{"id": 1, "note": "none"}]
    assert values(backup, schemas_path=str(tmp_path / "schemas"), value_schema_id=11) == [{"id": 1}]


def test_unknown_and_unresolvable_schemas(logs: Path) -> None:
    register(logs, "orders-value", 3, 13, record_schema(id="long", needed="string"))
    register(logs, "broken-value", 1, 14, '{"type": "recor"}')
    append(logs, "orders", [(None, b"\0\0\0\0\x0e"), (None, b"\0\0\0\0\x63")])

    table = read(logs, mode="PERMISSIVE")

    failures = [text and json.loads(text) for text in table["_corrupt_record"].to_pylist()]
    assert [(failure["reason"], failure["schemaId"]) for failure in failures] == [
        ("unresolvable", 11),
        ("unresolvable", 12),
        ("unresolvable", 14),
        ("unknown-id", 99),
    ]
    # It may lie in another topic than _schemas, or in a folder.
    assert failures[3]["message"] == "schema id 99 is not in the schema registry"
    with pytest.raises(ValueDecodeError, match=r"offset 0 .* unresolvable \(schema id 11\)"):
        read(logs)
    explanation = storage_core.explain(logs, subscribe="orders", value_format="registry")
    (column,) = explanation.columns
    assert (column.subject, column.version, column.schema_id) == ("orders-value", 3, 13)
    assert [line for line in column.not_read if "orders-value version 1 (id 11" in line]
    assert "value is read by orders-value version 3 (id 13) as struct<id: int64, needed: string>" in str(
        explanation
    )


def test_tasks_get_only_schemas_that_are_read(logs: Path) -> None:
    register(logs, "secret-value", 1, 30, record_schema("Secret", word="string"))

    (column,) = plan_formats(FileSystem(), options_of(logs))

    sources = {name: writer.source for name, writer in column.writers.items() if isinstance(name, int)}
    assert {name for name, source in sources.items() if source is not None} == {11, 12}
    assert sources[30] is None
    assert "Secret" in column.writers[30].message


def test_records_of_another_name_are_told_apart(logs: Path) -> None:
    renamed = {**record_schema("com.acme.Purchase", id="long"), "aliases": ["com.old.Order"]}
    register(logs, "orders-value", 3, 13, renamed)
    register(logs, "other-value", 1, 14, record_schema("Payment", id="long"))
    append(logs, "orders", [(None, framed(14, OTHER, {"id": 3}))])

    table = read(logs, mode="PERMISSIVE")

    assert table["value"].to_pylist() == [{"id": 1}, {"id": 2}, None]
    failure = json.loads(table["_corrupt_record"].to_pylist()[2])
    assert failure["reason"] == "unresolvable"
    assert "record Payment cannot be read as orders-value version 3 (id 13)" in failure["message"]


def test_schemas_are_not_for_the_read_of_one_log(logs: Path) -> None:
    with (
        storage_core.LogDirectory.open(logs, read_only=True) as directory,
        pytest.raises(OptionError, match="'value_format' is not for the read of one log"),
    ):
        list(directory.get("orders", 0).read(value_format="json"))


def test_raw_bytes_have_no_length(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    register(logs, "orders-value", 1, 1, {"type": "bytes"})
    register(logs, "orders-value", 2, 2, '"string"')
    register(logs, "orders-value", 3, 3, '["null", "bytes"]')
    long = b"x" * 300
    append(logs, "orders", [(None, b"\0\0\0\0\1" + each) for each in (b"", b"ab", long)])

    assert values(logs, value_schema_version=1) == [b"", b"ab", long]
    assert values(logs, value_schema_version=2) == ["", "ab", long.decode()]
    assert values(logs, value_schema_version=3) == [b"", b"ab", long]


# -- Contexts --------


@pytest.fixture
def two_contexts(tmp_path: Path) -> Path:
    """Return a topic of a named context, whose subjects have names of records; id 2 is in the default one, too."""
    folder = tmp_path / "logs"
    register(folder, "Order", 1, 2, record_schema(cost="long"))
    register(folder, ":.eu:Order", 1, 1, FIRST)
    register(folder, ":.eu:Order", 2, 2, record_schema(price="long"))
    append(
        folder,
        "orders",
        [(None, framed(1, FIRST, {"id": 7})), (None, framed(2, record_schema(price="long"), {"price": 5}))],
    )
    return folder


def test_an_id_that_is_another_schema_in_another_context_is_never_guessed(two_contexts: Path) -> None:
    with pytest.raises(ValueDecodeError, match=r"Id 2 is that of different schemas .* valueSubject=:\.eu:"):
        read(two_contexts, value_schema_id=1)

    table = read(two_contexts, value_schema_id=1, mode="PERMISSIVE")

    assert table["value"].to_pylist() == [{"id": 7}, None]
    failure = json.loads(table["_corrupt_record"].to_pylist()[1])
    assert (failure["reason"], failure["schemaId"]) == ("unresolvable", 2)
    (column,) = storage_core.explain(
        two_contexts, subscribe="orders", value_format="registry", value_schema_id=1
    ).columns
    assert [line for line in column.not_read if line.startswith("Id 2 is that of different schemas")]


def test_a_first_record_whose_context_is_not_known_is_an_error(two_contexts: Path) -> None:
    with pytest.raises(SchemaError, match="Id 2 is that of different schemas"):
        read(two_contexts, value_schema_id=2)
    append(two_contexts, "others", [(None, framed(2, record_schema(price="long"), {"price": 5}))])
    with pytest.raises(SchemaError, match=r"Order version 1 \(id 2, live\), :\.eu:Order version 2"):
        read(two_contexts, subscribe="others")
    assert values(two_contexts, subscribe="others", value_subject=":.eu:") == [{"price": 5}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"value_subject": ":.eu:Order", "value_schema_id": 2}, [{"price": 5}]),
        ({"value_subject": ":.eu:", "value_schema_id": 2}, [{"price": 5}]),
        ({"value_subject": ":.eu", "value_schema": record_schema(price="long")}, [{"price": 5}]),
        ({"value_subject": ":.:", "value_schema_id": 2}, [{"cost": 5}]),
    ],
)
def test_a_context_is_named_by_a_subject_or_alone(
    two_contexts: Path, options: dict[str, Any], expected: list[Any]
) -> None:
    assert values(two_contexts, mode="DROPMALFORMED", **options) == expected


def test_a_context_alone_keeps_the_topics_own_subject(logs: Path) -> None:
    register(logs, ":.eu:orders-value", 1, 12, OTHER)
    with pytest.raises(ValueDecodeError, match="Id 12 is that of different schemas"):
        read(logs)

    assert values(logs, value_subject=":.:") == [{"id": 1, "note": "none"}, {"id": 2, "note": "b"}]
    assert PinnedFormats(FileSystem(), options_of(logs, value_subject=":.:")).ids == {"value": 12}


@pytest.mark.parametrize(
    "options",
    [
        {"value_subject": "Order", "value_schema": FIRST},
        {"value_format": "avro", "value_subject": ":.eu:", "value_schema": FIRST},
        {"value_format": "string", "value_subject": ":.eu:"},
    ],
)
def test_a_subject_that_would_do_nothing_is_refused(two_contexts: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="valueSubject"):
        read(two_contexts, **options)


# -- A read that goes on --------


def test_a_read_that_goes_on_keeps_its_schema_and_learns_new_ones(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pinned = PinnedFormats(FileSystem(), options_of(logs))
    (before,) = pinned.formats
    assert pinned.ids == {"value": 12}

    register(logs, "orders-value", 3, 13, record_schema(id="long", note=("string", ""), more=("int", 0)))
    (after,) = pinned.plan_anew()
    pinned.plan_anew()

    assert after.reader == before.reader
    assert set(after.writers) - set(before.writers) >= {13}
    notices = [text for text in caplog.messages if "is newer than" in text]
    assert len(notices) == 1
    assert "orders-value version 3 (id 13" in notices[0]


def test_the_schema_of_an_earlier_run_is_kept_if_the_columns_are_the_same(logs: Path) -> None:
    register(logs, "orders-value", 3, 13, record_schema(id="long", note=("string", "other")))
    pinned = PinnedFormats(FileSystem(), options_of(logs))
    assert pinned.ids == {"value": 13}

    pinned.pin({"value": 12})

    assert pinned.ids == {"value": 12}
    with pytest.raises(OptionError, match=r"begun with .* version 1 \(id 11\).* Set valueSchemaId=11"):
        pinned.pin({"value": 11})


def test_a_schema_of_an_earlier_run_that_is_lost_is_named(logs: Path) -> None:
    pinned = PinnedFormats(FileSystem(), options_of(logs))

    with pytest.raises(
        SchemaError, match=r"begun with the values read by schema id 99\. No schema has the id 99"
    ):
        pinned.pin({"value": 99})
    assert pinned.ids == {"value": 12}


def test_a_schema_that_an_option_names_is_not_pinned(logs: Path) -> None:
    pinned = PinnedFormats(FileSystem(), options_of(logs, value_schema_id=11))

    pinned.pin({"value": 12})

    assert pinned.ids == {}
    (column,) = pinned.formats
    assert column.reader is not None
    assert column.reader.schema_id == 11


def test_a_log_that_is_followed_is_decoded_with_new_schemas(logs: Path) -> None:
    filesystem, options = FileSystem(), options_of(logs, columns="offset,value")
    formats = PinnedFormats(filesystem, options)
    follower = LogFollower(filesystem, options, read_schema(options, formats.formats), formats=formats)

    def new_values() -> list[Any]:
        return [value for batch in follower.read_new() for value in batch["value"].to_pylist()]

    assert [value["id"] for value in new_values()] == [1, 2]
    wider = record_schema(id="long", note=("string", ""), more=("int", 0))
    register(logs, "orders-value", 3, 13, wider)
    append(logs, "orders", [(None, framed(13, wider, {"id": 3, "note": "c", "more": 1}))])

    assert new_values() == [{"id": 3, "note": "c"}]
    assert new_values() == []


def test_a_follower_looks_for_schemas_once_in_a_round(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(1, 5):
        append(logs, "orders", [(None, framed(11, FIRST, {"id": partition}))], partition=partition)
    filesystem, options = FileSystem(), options_of(logs, columns="offset,value")
    formats = PinnedFormats(filesystem, options)
    follower = LogFollower(filesystem, options, read_schema(options, formats.formats), formats=formats)
    looks: list[object] = []
    look = PinnedFormats.plan_anew
    monkeypatch.setattr(PinnedFormats, "plan_anew", lambda self: looks.append(self) or look(self))

    assert sum(batch.num_rows for batch in follower.read_new()) == 6
    assert len(looks) == 1
    append(logs, "orders", [(None, framed(11, FIRST, {"id": 9}))], partition=3)
    assert sum(batch.num_rows for batch in follower.read_new()) == 1
    assert len(looks) == 2


def test_schemas_are_looked_for_again_only_if_files_changed(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = PinnedFormats(FileSystem(), options_of(logs))
    pinned.plan_anew()
    monkeypatch.setattr("storage_core.scan.typed_columns.load_registry", lambda *_: pytest.fail("read again"))

    pinned.plan_anew()
