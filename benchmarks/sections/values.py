"""Typed values on one core, compared with fastavro, with ptars on bare bytes, and with the same read as bytes."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.one_core import run_on_one_core
from benchmarks.progress import tell
from benchmarks.results import Finding, SectionResult, at_least
from benchmarks.scratch import new_directory
from benchmarks.settings import Settings
from benchmarks.timing import Series, Timed, interleave, ratio
from benchmarks.typed_records import AVRO_SCHEMAS, order, write_typed_log_directory

_FLAT_RECORDS = 500_000
_NESTED_RECORDS = 100_000
_MESSAGES = 200_000

_PROTO = """syntax = "proto3";
message Order {
  int64 id = 1; string customer = 2; double amount = 3; bool paid = 4; int32 items = 5; string note = 6; int64 at = 7; float weight = 8;
}"""

_OURS = "valueFormat=registry"
_BYTES = "the same read as bytes"
_OURS_ALL = "valueFormat=registry, all columns"
_BYTES_ALL = "the same read as bytes, all columns"
_FASTAVRO = "fastavro + pyarrow"
_PTARS = "ptars on bare bytes"
_PROTOBUF = "Protobuf decoder"

_METHOD = """\
Processor time of one process bound to one core. The log directory, written by segmentlog, holds a schema registry's topic
and Avro values in Confluent's frames: *flat* has 8 fields, *nested* a list of 0 to 5 structs and a map of 0 to 3 entries.
Reads ask for the column `value` alone, if nothing else is said, and go from the files, which are in the page cache, to Arrow. *fastavro +
pyarrow* reads the values as bytes the same way, decodes each record by `schemaless_reader`, and makes a column of them by
`pyarrow.array`. Protobuf: 8 flat fields in one array of bytes, without files; ptars decodes the same array."""


def run(settings: Settings) -> SectionResult:
    """Measure Avro from a log directory, and Protobuf from memory."""
    directory = new_directory(settings.scratch_directory, "typed-values")
    counts = {"flat": settings.scaled(_FLAT_RECORDS), "nested": settings.scaled(_NESTED_RECORDS)}
    findings: list[Finding] = []
    raw: dict[str, Any] = {}
    write_typed_log_directory(directory, counts)
    for topic, count in counts.items():
        tell(f"values {topic}")
        series = run_on_one_core(_measure_avro, topic, directory, settings.repetitions)
        findings += _avro_findings(topic, count, series)
        raw[topic] = {name: one.to_json() for name, one in series.items()}
    tell("values protobuf")
    series = run_on_one_core(_measure_protobuf, settings.scaled(_MESSAGES), settings.repetitions)
    raw["protobuf"] = {name: one.to_json() for name, one in series.items()}
    findings.append(_finding(_PROTOBUF, _PTARS, "8 flat fields", series, 0.8))
    return SectionResult("values", "Typed values on one core", _METHOD, tuple(findings), raw)


def _measure_avro(topic: str, directory: Path, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    import fastavro
    import pyarrow as pa

    import storage_core

    schema = fastavro.parse_schema(AVRO_SCHEMAS[topic])

    def read(**options: Any) -> pa.Table:
        return storage_core.read_table(str(directory), subscribe=topic, **{"columns": ["value"], **options})

    typed = read(value_format="registry")
    arrow_type = typed.schema.field("value").type

    def read_by_fastavro() -> pa.ChunkedArray:
        chunks = []
        for values in read()["value"].chunks:
            records = [
                fastavro.schemaless_reader(io.BytesIO(value[5:]), schema) for value in values.to_pylist()
            ]
            chunks.append(pa.array(records, arrow_type))
        return pa.chunked_array(chunks)

    if read_by_fastavro().combine_chunks() != typed["value"].combine_chunks():
        raise RuntimeError(f"fastavro reads other values of {topic} than segmentlog.")
    return interleave(
        {
            _OURS: _processor_time(lambda: read(value_format="registry").num_rows),
            _BYTES: _processor_time(lambda: read().num_rows),
            _OURS_ALL: _processor_time(lambda: read(value_format="registry", columns=None).num_rows),
            _BYTES_ALL: _processor_time(lambda: read(columns=None).num_rows),
            _FASTAVRO: _processor_time(lambda: len(read_by_fastavro())),
        },
        warm_up_rounds=1,
        rounds=rounds,
        peers=[_FASTAVRO],
    )


def _measure_protobuf(count: int, rounds: int) -> dict[str, Series]:
    """Runs in a process of its own."""
    import ptars
    import pyarrow as pa
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    from storage_core.values.decoding import Payloads, SchemaSource
    from storage_core.values.proto_text import parse_proto
    from storage_core.values.protobuf import protobuf_decoder

    pool = DescriptorPool()
    pool.AddSerializedFile(parse_proto(_PROTO, "order.proto").descriptor.SerializeToString())
    message = pool.FindMessageTypeByName("Order")
    handlers = ptars.HandlerPool([message.file])
    handler = handlers.get_for_message(message)
    chance = random.Random(11)
    kind = GetMessageClass(message)
    orders = (order(number, chance) for number in range(count))
    values = pa.array([kind(**order).SerializeToString() for order in orders], pa.binary())
    payloads = Payloads.of_array(values)
    decoder = protobuf_decoder(SchemaSource(_PROTO), "Order")
    return interleave(
        {
            _PROTOBUF: _processor_time(lambda: len(decoder.decode(payloads).array)),
            _PTARS: _processor_time(lambda: handler.array_to_record_batch(values).num_rows),
        },
        warm_up_rounds=3,
        rounds=rounds * 4,
        peers=[_PTARS],
    )


def _processor_time(work: Callable[[], int]) -> Callable[[], Timed]:
    def timed() -> Timed:
        started = time.process_time()
        records = work()
        return Timed(time.process_time() - started, records)

    return timed


def _avro_findings(topic: str, count: int, series: Mapping[str, Series]) -> list[Finding]:
    subject = f"{topic}, {count:,} records"
    return [
        _finding(_OURS, _FASTAVRO, subject, series, 15 if topic == "flat" else 8),
        _finding(_OURS, _BYTES, subject, series, None),
        _finding(_OURS_ALL, _BYTES_ALL, subject, series, 0.5 if topic == "flat" else None),
    ]


def _finding(
    ours: str, peer: str, subject: str, series: Mapping[str, Series], least: float | None
) -> Finding:
    mine, theirs = series[ours], series[peer]
    detail = f"{mine.records_per_second / 1e6:.2f} : {theirs.records_per_second / 1e6:.2f} M records/s of processor time"
    target = None if least is None else at_least(least)
    return Finding(f"{ours} : {peer}", subject, ratio(theirs, mine), "×", target, detail)
