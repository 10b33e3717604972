"""`segmentlog schemas`: what a registry's topic holds, as rows, as files, and as the calls that recreate the registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from urllib.parse import unquote

import pyarrow as pa
import pytest

from storage_core import FileSystem, LogDirectory, read_table
from storage_core.dump.schemas import plan_restore
from storage_core.options import parse_read_options
from storage_core.scan.schemas_topic import load_registry
from storage_core.values.registered_schema import context_and_name
from storage_core.values.schema_registry import read_registry
from tests.values.registry_records import RegistryLog, record_key
from tests.values.typed_logs import expected_values, unpack_typed_logs

_HOSTILE_SUBJECTS = [
    "a'b\"$(touch x)`y`;\\",
    "..",
    "li\nne\x1b[31m",
    "sübject/€",
    ":.ctx:in a context",
    "END",
    "?q#f&",
]
_HOSTILE_TEXT = "'\nEND\n$(touch x)`\\\0\x7f€😀\u2028"


@pytest.fixture(scope="module")
def broker_data(tmp_path_factory):
    return unpack_typed_logs(tmp_path_factory.mktemp("typed"))


@pytest.fixture
def log():
    return RegistryLog()


def write(root, log, topic="_schemas"):
    """Write the records of a registry's topic to a log directory."""
    with LogDirectory.open(root) as logs:
        columns = {"key": [each[2] for each in log.records], "value": [each[3] for each in log.records]}
        logs.create(topic).append(
            pa.table({name: pa.array(values, pa.binary()) for name, values in columns.items()})
        )
    return root


def loaded(path):
    options = parse_read_options({"path": "/nothing", "schemasPath": str(path), "view": "schemas"})
    return load_registry(FileSystem(), options)


# Rows.


def test_a_table_for_people(segmentlog, broker_data):
    ended = segmentlog("schemas", broker_data)
    head, first, *others = ended.stdout.splitlines()
    assert head.split() == [
        "subject",
        "version",
        "id",
        "type",
        "state",
        "offset",
        "timestamp",
        "hasDuplicateId",
    ]
    assert first.split() == [
        *(
            ":.staging:avro-context-value",
            "1",
            "32",
            "AVRO",
            "live",
            "20",
            "2026-01-01T00:20:00.000Z",
            "false",
        )
    ]
    assert len(others) == 37
    assert others[-1].split() == ["unreadable", "87"]
    assert ended.status == 0
    duplicate = (
        f"segmentlog: {broker_data}: Id 32 in the default context is that of different schemas: avro-simple-value version 1, "
        "legacy-dup-value version 1. A topic's records are read with that of its own subject, or else the first."
    )
    assert ended.stderr.splitlines() == [
        duplicate,
        f"segmentlog: {broker_data}: Records that no schema registry writes are left out: at offset 87.",
        f"segmentlog: {broker_data}: Records of a kind that is not known are left out: 1.",
    ]


def test_json_has_all_columns_and_the_view_the_same_rows(segmentlog, broker_data):
    rows = [
        json.loads(line)
        for line in segmentlog("schemas", broker_data, "--output", "jsonl").stdout.splitlines()
    ]
    view = read_table(broker_data, view="schemas").to_pylist()
    for row in (*rows, *view):
        row.pop("timestamp")
    assert rows == view
    expected = expected_values()["registry"]["schemas"]
    names = ("subject", "version", "id", "type", "state", "guid")
    assert [{name: row[name] for name in names} for row in rows[:-1]] == [
        {name: row[name] for name in names} for row in expected
    ]
    by_id = {row["id"]: row for row in rows}
    assert by_id[43]["references"] == [{"name": "com.acme.shop.Geo", "subject": "shop-geo", "version": 1}]
    assert [row["version"] for row in rows if row["isEncrypted"]] == [2, 3]
    assert [row["subject"] for row in rows if row["hasDuplicateId"]] == [
        "avro-simple-value",
        "legacy-dup-value",
    ]
    assert json.loads(by_id[36]["schema"])["name"] == "Geo"


def test_rows_are_chosen_by_the_offset_and_time_of_their_record(segmentlog, broker_data):
    ended = segmentlog(
        "schemas", broker_data, "--where", "offset >= 84 OR timestamp < '2026-01-01T00:04:00Z'", "-o", "jsonl"
    )
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == [26, 102, None]


def test_names_of_a_registry_cannot_write_on_a_terminal(segmentlog, tmp_path, log):
    log.register("\x1b[31mred\n", 1, 1, "\x1b]0;title\a")
    root = write(tmp_path / "logs", log)
    for flags in ((), ("-o", "csv"), ("-o", "json"), ("--restore-plan",)):
        assert "\x1b" not in segmentlog("schemas", root, *flags).stdout


# Where the schemas are.


def test_a_directory_without_the_topic_says_what_to_name(segmentlog, tmp_path, log):
    log.register("t", 1, 1)
    root = write(tmp_path / "logs", log, "registry")
    assert segmentlog("schemas", root).refused(
        3, f"There is no topic _schemas in {root}. Name the log directory"
    )
    assert segmentlog("schemas", root, "--schemas-topic", "registry").stdout.count("\n") == 2


def test_a_view_of_schemas_takes_no_topics(broker_data):
    with pytest.raises(ValueError, match="view=schemas is about the schemas of all topics"):
        read_table(broker_data, view="schemas", subscribe="_schemas")


def test_a_folder_of_files_named_by_id_is_read_as_a_registry(segmentlog, tmp_path):
    (tmp_path / "17.avsc").write_text('"int"')
    (tmp_path / "18.proto").write_text('syntax = "proto3";')
    (tmp_path / "notes.txt").write_text("no schema")
    (row, _) = map(json.loads, segmentlog("schemas", tmp_path, "-o", "jsonl").stdout.splitlines())
    assert (row["id"], row["type"], row["schema"]) == (17, "AVRO", '"int"')
    (tmp_path / "19.json").write_bytes(b"\xff")
    assert segmentlog("schemas", tmp_path).refused(3, "A schema file is not UTF-8")


def test_damage_of_the_topic_is_left_out_with_a_warning_or_fails_the_command(segmentlog, tmp_path, log):
    for number in range(3):
        log.register(f"t{number}", 1, number)
    root = tmp_path / "logs"
    with LogDirectory.open(root) as logs:
        topic = logs.create("_schemas")
        for _, _, key, value in log.records:
            topic.append(pa.table({"key": [key], "value": [value]}))
    (path,) = root.glob("_schemas-0/*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ended = segmentlog("schemas", root, "-o", "jsonl")
    assert [json.loads(line)["subject"] for line in ended.stdout.splitlines()] == ["t0", "t2"]
    assert "CRC" in ended.stderr
    assert segmentlog("schemas", root, "--mode", "FAILFAST").status == 1


# Files.


def test_an_export_is_the_registry_that_it_is_made_of(segmentlog, broker_data, tmp_path):
    target = tmp_path / "out"
    ended = segmentlog("schemas", broker_data, "--export", target)
    assert ended.stdout == f"35 schemas in 35 files: {target}\n"
    exported, original = loaded(target), loaded(broker_data)
    assert exported.schemas == tuple(each for each in original.schemas if each.text is not None)
    assert (exported.configs, exported.modes) == (original.configs, original.modes)
    assert (target / "32.avsc").read_text() == original.by_name(32).text
    assert (target / "32-2.avsc").read_text() == original.reader_schema("legacy-dup").text
    assert (target / "32-3.avsc").read_text() == original.by_name(32, (".staging",)).text
    assert (target / "96.proto").read_text().startswith("syntax")
    assert (target / "102.json").read_text() == original.by_name(102).text
    listed = json.loads((target / "schemas.json").read_text())
    assert {"subject", "version", "id", "schemaType", "state", "guid", "file"} <= listed["schemas"][0].keys()
    nested = next(each for each in listed["schemas"] if each["id"] == 45)
    assert nested["references"] == [
        {"name": "com.acme.shop.Address", "subject": "shop-address", "version": 2}
    ]
    for flags in ((), ("--restore-plan",)):
        assert segmentlog("schemas", target, *flags).status == 0
    plans = [segmentlog("schemas", path, "--restore-plan").stdout for path in (target, broker_data)]
    assert plans[0] == plans[1]


def test_an_export_needs_a_new_or_empty_directory_outside_of_what_it_reads(segmentlog, tmp_path, log):
    log.register("t", 1, 1)
    root = write(tmp_path / "logs", log)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert segmentlog("schemas", root, "--export", tmp_path / "full").refused(
        2, "a new or an empty directory"
    )
    assert segmentlog("schemas", root, "--export", root / "out").refused(2, "is inside of")
    assert segmentlog("schemas", root, "--export", tmp_path / "no" / "out").status == 3
    ended = segmentlog("schemas", root, "--export", tmp_path / "a", "--restore-plan")
    assert ended.refused(2, "are two commands")


def test_names_of_files_come_from_ids_alone(segmentlog, tmp_path, log):
    for number, subject in enumerate(_HOSTILE_SUBJECTS, 1):
        log.register(subject, 1, number, _HOSTILE_TEXT, schemaType="../../TYPE" if number == 1 else "JSON")
    root = write(tmp_path / "logs", log)
    assert segmentlog("schemas", root, "--export", tmp_path / "out").status == 0
    names = {
        "1.schema",
        *(f"{number}.json" for number in range(2, len(_HOSTILE_SUBJECTS) + 1)),
        "schemas.json",
    }
    assert set(os.listdir(tmp_path / "out")) == names
    assert loaded(tmp_path / "out").schemas == loaded(root).schemas


# Calls.


class ModelRegistry:
    """A registry that takes calls as Confluent's does, with the rules that matter when one is filled."""

    def __init__(self):
        self.modes, self.configs, self.versions = {}, {}, {}

    def call(self, method, path, body=None):
        path, _, query = path.partition("?")
        kind, *rest = [unquote(part) for part in path.strip("/").split("/")]
        if kind == "mode":
            assert body["mode"] != "IMPORT" or query == "force=true" or not self.versions
            self.modes[rest[0] if rest else None] = body["mode"]
        elif kind == "config":
            self.configs[rest[0] if rest else None] = body
        elif method == "POST":
            self._register(rest[0], body)
        else:
            self._delete(rest[0], int(rest[2]))

    def _register(self, subject, body):
        context = context_and_name(subject)[0]
        assert self.modes[None if context == "." else f":{context}:"] == "IMPORT"
        for reference in body.get("references", ()):
            assert reference["subject"] == "gone" or self._place(subject, reference) in self.versions
        for (other, _), version in self.versions.items():
            if context_and_name(other)[0] == context and version["id"] == body["id"]:
                assert version["schema"] == body["schema"]
        self.versions[subject, body["version"]] = {**body, "state": "live"}

    def _delete(self, subject, version):
        for (other, _), body in self.versions.items():
            if body["state"] == "live":
                assert (subject, version) not in [
                    self._place(other, each) for each in body.get("references", ())
                ]
        self.versions[subject, version]["state"] = "soft-deleted"

    @staticmethod
    def _place(subject, reference):
        context, name = context_and_name(subject)[0], reference["subject"]
        is_unqualified = context != "." and context_and_name(name)[0] == "."
        return (f":{context}:{name}" if is_unqualified else name), reference["version"]


def _restored(plan):
    model = ModelRegistry()
    for call in plan.calls:
        model.call(*call)
    return model


def test_the_plan_recreates_subjects_versions_ids_and_states(segmentlog, broker_data):
    ended = segmentlog("schemas", broker_data, "--restore-plan", "--output", "jsonl")
    model = ModelRegistry()
    for line in ended.stdout.splitlines():
        model.call(**json.loads(line))
    original = loaded(broker_data)
    wanted = {
        (each.subject, each.version): (each.schema_id, each.text, each.state)
        for each in original.schemas
        if each.text is not None and each.state != "tombstoned" and each.subject != "legacy-dup-value"
    }
    found = {place: (body["id"], body["schema"], body["state"]) for place, body in model.versions.items()}
    assert found == wanted
    assert model.versions["avro-encrypted-value", 2]["ruleSet"]["domainRules"][0]["type"] == "ENCRYPT"
    assert model.modes == {None: "READWRITE", ":.staging:": "READWRITE"}
    assert model.configs["avro-evolved-value"] == {"compatibilityLevel": "NONE", "alias": ""}
    assert ended.stderr.splitlines()[3:] == [
        "segmentlog: not in the plan: 1 schema deleted for good; --export has them.",
        "segmentlog: not in the plan: legacy-dup-value version 1 (id 32, live): another schema has its id.",
    ]


def test_schemas_come_after_what_they_refer_to_and_are_deleted_before_it(log):
    log.register("user", 1, 5, references=[("b", "base", 1)], deleted=True)
    log.register(":.c:user", 1, 6, references=[("b", "base", 1)])
    log.register("base", 1, 4, deleted=True)
    log.register(":.c:base", 1, 7, deleted=True)
    log.register("user", 2, 8, references=[("gone", "gone", 1)])
    plan = plan_restore(read_registry(log.records))
    assert len(_restored(plan).versions) == 5
    posts = [(call.path, call.body["version"]) for call in plan.calls if call.method == "POST"]
    assert posts.index(("/subjects/base/versions", 1)) < posts.index(("/subjects/user/versions", 1))
    assert posts.index(("/subjects/%3A.c%3Abase/versions", 1)) < posts.index(
        ("/subjects/%3A.c%3Auser/versions", 1)
    )
    deletions = [call.path for call in plan.calls if call.method == "DELETE"]
    assert deletions == ["/subjects/user/versions/1", "/subjects/base/versions/1"]
    assert plan.left_out == [
        "a schema that user version 2 (id 8, live) refers to.",
        "the soft deletion of :.c:base version 1 (id 7, soft-deleted): a live schema refers to it.",
    ]


def test_circles_long_chains_and_schemas_without_a_subject_do_not_stop_the_plan(log):
    log.register("a", 1, 1, references=[("b", "b", 1)])
    log.register("b", 1, 2, references=[("a", "a", 1)])
    log.register("c", 1, 3, references=[("a", "a", 1)])
    log.register("", 1, 4)
    for version in range(1, 1_000):
        log.register("chain", version, 10 + version, references=[("n", "chain", version + 1)])
    log.register("chain", 1_000, 10 + 1_000)
    plan = plan_restore(read_registry(log.records))
    assert len(_restored(plan).versions) == 1_000
    assert [line.partition(":")[0] for line in plan.left_out] == [
        *("id 4", "a version 1 (id 1, live)", "b version 1 (id 2, live)", "c version 1 (id 3, live)")
    ]


def test_modes_of_the_log_end_the_import(log):
    log.register("t", 1, 1)
    log.add(record_key("t", keytype="MODE"), b'{"subject":"t","mode":"READONLY","offset":5,"ts":6}')
    log.add(record_key(":.c:", keytype="MODE"), b'{"mode":"IMPORT"}')
    model = _restored(plan_restore(read_registry(log.records)))
    assert model.modes == {None: "READWRITE", "t": "READONLY", ":.c:": "IMPORT"}


def test_the_script_hands_curl_what_the_lines_of_json_say_whatever_names_and_texts_hold(
    segmentlog, tmp_path, log
):
    for number, subject in enumerate(_HOSTILE_SUBJECTS, 1):
        log.register(subject, 1, number, _HOSTILE_TEXT, deleted=number % 2 == 0)
    root = write(tmp_path / "logs", log)
    script = segmentlog("schemas", root, "--restore-plan").stdout
    lines = segmentlog("schemas", root, "--restore-plan", "-o", "jsonl").stdout
    assert script.isascii()
    assert lines.isascii()
    calls = [json.loads(line) for line in lines.splitlines()]
    assert [
        unquote(call["path"].split("/")[2]) for call in calls if call["method"] == "POST"
    ] == _HOSTILE_SUBJECTS
    assert all(call["body"]["schema"] == _HOSTILE_TEXT for call in calls if call["method"] == "POST")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "curl").write_text(
        f"#!{sys.executable}\nimport json, sys\nprint(json.dumps([sys.argv[1:], sys.stdin.read()]))\n"
    )
    (programs / "curl").chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SCHEMA_REGISTRY_URL": "http://r:1",
        "CURL_OPTIONS": "-u a:b",
    }
    done = subprocess.run(
        ["sh", "-s"], input=script, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    made = [json.loads(line) for line in done.stdout.splitlines() if line]
    assert len(made) == len(calls)
    for (arguments, body), call in zip(made, calls, strict=True):
        assert arguments[arguments.index("--request") + 1] == call["method"]
        assert arguments[-1] == "http://r:1" + call["path"]
        assert arguments[arguments.index("-u") + 1] == "a:b"
        assert (json.loads(body) if body else None) == call.get("body")
    assert sorted(os.listdir(tmp_path)) == ["logs", "programs"]


def test_a_plan_is_a_script_or_lines_of_json(segmentlog, broker_data):
    ended = segmentlog("schemas", broker_data, "--restore-plan", "--output", "csv")
    assert ended.refused(2, "--restore-plan prints a script, or JSON lines: found --output csv")
