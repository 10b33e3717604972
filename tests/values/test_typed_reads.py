"""Keys and values are decoded batch by batch; those that do not decode are reported as the mode of the read asks."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import storage_core
from storage_core.errors import CorruptRecordError, OptionError, SchemaError, ValueDecodeError
from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_schema, read_tasks
from storage_core.scan.typed_columns import plan_formats
from storage_core.values.column_format import ColumnDecoder
from tests.values.written_logs import append, encoded, record_schema, register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOOD, BAD = b"good", b"\xff\xfe"
ORDER = record_schema(id="long", note="string")


def read(logs: Path, **options: Any) -> pa.Table:
    return storage_core.read_table(logs, **{"subscribe": "orders", "value_format": "string", **options})


def batches(logs: Path, **options: Any) -> Iterator[pa.RecordBatch]:
    parsed = parse_read_options({"path": str(logs), "subscribe": "orders", **options})
    filesystem = FileSystem()
    formats = plan_formats(filesystem, parsed)
    plan = plan_scan(filesystem, parsed, formats=formats)
    # As tasks travel.
    tasks = pickle.loads(pickle.dumps(plan.tasks))
    return read_tasks(filesystem, tasks, read_schema(parsed, formats))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a topic whose records 3 and 5 do not decode; record 1 is a tombstone."""
    append(
        tmp_path / "logs",
        "orders",
        [(b"k", GOOD), (b"k", None), (None, GOOD), (b"k", BAD), (b"k", GOOD), (BAD, BAD), (BAD, GOOD)],
        per_batch=2,
    )
    return tmp_path / "logs"


def test_a_record_that_does_not_decode_fails_the_read(logs: Path) -> None:
    with pytest.raises(
        ValueDecodeError, match=r"value of orders-0 at offset 3 .* malformed.*mode to PERMISSIVE"
    ) as raised:
        read(logs)

    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("orders", 0, 3)
    assert (error.reason, error.schema_id) == ("malformed", None)
    assert pickle.loads(pickle.dumps(error)).reason == "malformed"
    with pytest.raises(ValueDecodeError, match="with its bytes in damage, or to DROPMALFORMED"):
        read(logs, columnNameOfCorruptRecord="damage")


def test_rows_before_the_one_that_fails_the_read_are_read(logs: Path) -> None:
    found = []
    with pytest.raises(ValueDecodeError):
        found.extend(batches(logs, value_format="string"))

    assert [row for batch in found for row in batch["offset"].to_pylist()] == [0, 1, 2]


def test_a_permissive_read_describes_records_that_do_not_decode(
    logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = read(logs, mode="PERMISSIVE")

    assert table["value"].to_pylist() == ["good", None, "good", None, "good", None, "good"]
    described = [text and json.loads(text) for text in table["_corrupt_record"].to_pylist()]
    assert [row for row, text in enumerate(described) if text] == [3, 5]
    message = described[3].pop("message")
    assert "UTF-8" in message
    assert described[3] == {
        "column": "value",
        "reason": "malformed",
        "schemaId": None,
        "raw": base64.b64encode(BAD).decode(),
        "sizeBytes": 2,
        "topic": "orders",
        "partition": 0,
        "offset": 3,
    }
    (warning,) = [text for text in caplog.messages if "do not decode" in text]
    assert warning.startswith(
        "orders-0: 2 records do not decode (2 malformed), the first at offset 3: its value: "
    )
    assert warning.endswith("They are null.")


def test_if_key_and_value_do_not_decode_the_key_is_within(logs: Path) -> None:
    table = read(logs, mode="PERMISSIVE", key_format="string")

    described = [text and json.loads(text) for text in table["_corrupt_record"].to_pylist()]
    assert [text and text["column"] for text in described] == [
        None,
        None,
        None,
        "value",
        None,
        "value",
        "key",
    ]
    assert described[5]["key"]["raw"] == described[5]["raw"] == base64.b64encode(BAD).decode()
    assert "key" not in described[3]
    assert table["key"].to_pylist() == ["k", "k", None, "k", "k", None, None]


def test_records_that_do_not_decode_may_be_left_out(logs: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = read(logs, mode="DROPMALFORMED", key_format="string", columns=["value", "offset", "key"])

    assert table["offset"].to_pylist() == [0, 1, 2, 4]
    assert table.schema.names == ["value", "offset", "key"]
    (warning,) = [text for text in caplog.messages if "do not decode" in text]
    assert "3 records do not decode (3 malformed)" in warning
    assert warning.endswith("They are left out.")


def test_a_warning_is_printable_whatever_a_schema_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "field\x1b[2J\n\u202e"
    append(tmp_path / "logs", "orders", [(None, json.dumps({name: "x"}).encode())])
    schema = json.dumps({"properties": {name: {"type": "integer"}}})

    assert (
        read(tmp_path / "logs", mode="DROPMALFORMED", value_format="json", value_schema=schema).num_rows == 0
    )
    (warning,) = [text for text in caplog.messages if "do not decode" in text]
    assert "'field\\x1b[2J\\n\\u202e' is not an integer" in warning


def test_a_partition_of_records_that_do_not_decode_gives_no_batch(tmp_path: Path) -> None:
    append(tmp_path / "logs", "orders", [(None, BAD)] * 10)

    assert list(batches(tmp_path / "logs", value_format="string", mode="DROPMALFORMED")) == []


def test_what_is_not_read_is_not_decoded(logs: Path) -> None:
    assert read(logs, columns="offset,key").num_rows == 7


def test_a_condition_applies_before_records_are_decoded(logs: Path) -> None:
    table = read(logs, where="offset IN (0, 2, 4)", columns="value")

    assert table.to_pydict() == {"value": ["good"] * 3}


def test_the_bytes_of_a_record_that_does_not_decode_are_bounded(tmp_path: Path) -> None:
    append(tmp_path / "logs", "orders", [(None, b"\xff" * 100_000)])

    (text,) = read(tmp_path / "logs", mode="PERMISSIVE")["_corrupt_record"].to_pylist()
    described = json.loads(text)
    assert base64.b64decode(described["raw"]) == b"\xff" * 65_536
    assert (described["sizeBytes"], described["rawLimitBytes"]) == (100_000, 65_536)


def test_small_batches_are_decoded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path / "logs", "orders", [(None, b"%d" % number) for number in range(9_000)], per_batch=300)
    counts = []
    decode = ColumnDecoder.decode

    def counting(self: ColumnDecoder, values: pa.Array, headers: pa.Array | None = None) -> Any:
        counts.append(len(values))
        return decode(self, values, headers)

    monkeypatch.setattr(ColumnDecoder, "decode", counting)
    monkeypatch.setattr("storage_core.segment.batch_windows.WINDOW_BYTES", 4096)
    monkeypatch.setattr("storage_core.scan.read.WINDOW_BYTES", 4096)
    assert max(batch.num_rows for batch in batches(tmp_path / "logs")) < 1_000
    table = read(tmp_path / "logs")

    assert table["value"].to_pylist() == [str(number) for number in range(9_000)]
    assert all(count >= 4_096 for count in counts[:-1])
    assert sum(counts) == 9_000


def test_batches_are_cut_as_those_of_bytes_are(tmp_path: Path) -> None:
    reader = record_schema(id="long", note=("string", "x" * 1_000))
    writer = record_schema(id="long")
    append(tmp_path / "logs", "orders", [(None, encoded(writer, {"id": row})) for row in range(20_000)])

    found = list(batches(tmp_path / "logs", value_format="avro", value_schema=writer))
    assert [batch.num_rows for batch in found] == [20_000]
    framed = tmp_path / "framed"

    register(framed, "orders-value", 1, 1, writer)
    register(framed, "orders-value", 2, 2, reader)
    values = [(None, b"\0\0\0\0\1" + encoded(writer, {"id": row})) for row in range(20_000)]
    append(framed, "orders", values)
    found = list(batches(framed, value_format="registry"))
    assert sum(batch.num_rows for batch in found) == 20_000
    assert all(0 < batch.nbytes < 9 << 20 for batch in found)


def test_long_defaults_are_decoded_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = record_schema(id="long", note=("string", "x" * 60_000))
    writer = record_schema(id="long")
    register(tmp_path / "logs", "orders-value", 1, 1, writer)
    register(tmp_path / "logs", "orders-value", 2, 2, reader)
    values = [(None, b"\0\0\0\0\1" + encoded(writer, {"id": row})) for row in range(10_000)]
    append(tmp_path / "logs", "orders", values)
    monkeypatch.setattr("storage_core.values.column_format._MOST_DEFAULT_BYTES", 6_000_000)

    rows = 0
    for batch in batches(tmp_path / "logs", value_format="registry"):
        rows += batch.num_rows
        assert pa.total_allocated_bytes() < 100_000_000

    assert rows == 10_000


def test_damage_keeps_its_place_among_decoded_rows(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    append(logs, "orders", [(None, b"%d" % row) for row in range(9)], per_batch=3)
    path = logs / "orders-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)

    table = read(logs, mode="PERMISSIVE")

    assert table["value"].to_pylist() == ["0", "1", "2", None, "6", "7", "8"]
    described = [text and json.loads(text) for text in table["_corrupt_record"].to_pylist()]
    assert [text is not None for text in described] == [False] * 3 + [True] + [False] * 3
    assert described[3]["startOffset"] == 3
    assert "column" not in described[3]
    found = []
    with pytest.raises(CorruptRecordError):
        found.extend(batches(logs, value_format="string"))
    assert [value for batch in found for value in batch["value"].to_pylist()] == ["0", "1", "2"]


def test_json_without_a_schema_is_checked_text(tmp_path: Path) -> None:
    append(tmp_path / "logs", "orders", [(None, b'{"a": 1}'), (None, b'{"a": 1} {}'), (None, b"[1, 2]")])

    table = read(tmp_path / "logs", value_format="json", mode="PERMISSIVE")

    assert table["value"].to_pylist() == ['{"a": 1}', None, "[1, 2]"]


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    append(tmp_path / "logs", "orders", [(None, encoded(ORDER, {"id": 7, "note": "x"}))])

    for schema in (file, str(file), f"file:{file}", ORDER, json.dumps(ORDER)):
        table = read(tmp_path / "logs", value_format="avro", value_schema=schema)
        assert table["value"].to_pylist() == [{"id": 7, "note": "x"}]


@pytest.mark.parametrize(
    ("schema", "error", "message"),
    [
        ("absent.avsc", OptionError, r"valueSchema names the file absent\.avsc, which does not exist"),
        ('{"type": "recor"}', SchemaError, "recor"),
    ],
)
def test_a_schema_that_is_none(tmp_path: Path, schema: str, error: type[Exception], message: str) -> None:
    append(tmp_path / "logs", "orders", [(None, GOOD)])

    with pytest.raises(error, match=message):
        read(tmp_path / "logs", value_format="avro", value_schema=schema)


def test_a_message_is_for_protobuf(tmp_path: Path) -> None:
    register(tmp_path, "orders-value", 1, 1, ORDER)
    append(tmp_path, "orders", [(None, b"\0\0\0\0\1" + encoded(ORDER, {"id": 7, "note": "x"}))])

    with pytest.raises(OptionError, match="valueMessage is for Protobuf, and the values are AVRO"):
        read(tmp_path, value_format="registry", value_message="Order")


def test_protobuf_without_its_extra_is_one_line(typed_logs: Path) -> None:
    code = (
        "import sys; sys.modules['google.protobuf'] = None; import storage_core; "
        f"storage_core.read_table({str(typed_logs)!r}, subscribe='proto-nested', value_format='registry')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1].endswith("pip install 'spark-segmentlog[protobuf]'.")
    assert "OptionError: Protobuf needs" in done.stderr.splitlines()[-1]


def test_a_schema_of_a_folder_is_named_by_its_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "7.avsc").write_text(json.dumps(ORDER))
    append(tmp_path / "logs", "orders", [(None, b"\0\0\0\0\7" + encoded(ORDER, {"id": 7, "note": "x"}))])

    table = read(tmp_path / "logs", value_format="registry", schemas_path=tmp_path / "files")

    assert table["value"].to_pylist() == [{"id": 7, "note": "x"}]
    assert "its values are read with schema id 7, that of the first record" in caplog.text
    explanation = storage_core.explain(
        tmp_path / "logs", value_format="registry", schemas_path=tmp_path / "files"
    )
    assert "value is read by schema id 7 as struct<id: int64, note: string>" in str(explanation)


def test_paths_choose_fields(tmp_path: Path) -> None:
    append(tmp_path / "logs", "orders", [(None, encoded(ORDER, {"id": 7, "note": "x"}))])
    options = {"value_format": "avro", "value_schema": ORDER}

    table = read(tmp_path / "logs", **options, columns="value.note,offset")

    assert table.to_pylist() == [{"value": {"note": "x"}, "offset": 0}]
    with pytest.raises(OptionError, match="no field 'nite'"):
        read(tmp_path / "logs", **options, columns="value.nite")


def test_a_plan_without_formats_is_refused(logs: Path) -> None:
    options = parse_read_options({"path": str(logs), "value_format": "string"})

    with pytest.raises(OptionError, match="valueFormat=string has to be planned first"):
        plan_scan(FileSystem(), options)


def test_an_explanation_names_what_columns_are(logs: Path) -> None:
    explanation = storage_core.explain(logs, value_format="string", key_format="json")

    assert [(each.column, each.type) for each in explanation.columns] == [
        ("value", "string"),
        ("key", "string"),
    ]
    assert "value is read as string" in str(explanation)
    assert explanation.to_dict()["columns"][0]["schema_id"] is None


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
