"""What all commands have in common: help, exit statuses, one line about each mistake, pipes and signals."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest

from storage_core.cli import main as main_module
from storage_core.cli.flags import flag_of, output_flag, paths_argument, read_flags
from storage_core.cli.main import COMMANDS, run
from storage_core.cli.output import Output, printable, progress
from storage_core.errors import CorruptRecordError, OptionError, StorageError
from storage_core.views.texts import json_value
from tests.log.logs import write


def test_the_help_names_every_command_with_a_line(segmentlog):
    shown = segmentlog("--help")
    assert shown.status == 0
    assert not shown.stderr
    for name in COMMANDS:
        assert f"\n  {name} " in shown.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_explains_itself(segmentlog, name: str):
    shown = segmentlog(name, "--help")
    assert shown.status == 0
    assert shown.stdout.startswith(f"Usage: segmentlog {name} ")


@pytest.mark.parametrize("name", [*sorted(COMMANDS.keys() - {"index"}), "index rebuild"])
def test_the_help_of_a_command_shows_its_own_options_first(segmentlog, name: str):
    shown = segmentlog(*name.split(), "--help").stdout
    own, *shared = shown.split("\nOptions:\n")[1].split(":\n  --")
    assert "--help" in own
    assert own.endswith(("\nWhat to read", "\nStorage"))
    assert ("\nTyped values:\n" in shown) == ("--value-format" in shown or "--schemas-topic" in shown)
    assert not re.search("--(?:subscribe|where|schemas-topic|remote-storage-key-file|storage-option) ", own)
    assert "--storage-option" in shared[-1]
    assert shown.endswith("\n  See docs/cli.md.\n")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_says_nothing_of_streams_and_data_frames(segmentlog, name: str):
    assert not re.search(r"\b(?:stream|Spark|DataFrame)\b", segmentlog(name, "--help").stdout)


def test_completion_says_what_commands_do(segmentlog, monkeypatch):
    monkeypatch.setenv("_SEGMENTLOG_COMPLETE", "fish_complete")
    monkeypatch.setenv("COMP_WORDS", "segmentlog")
    monkeypatch.setenv("COMP_CWORD", "")
    expected = [f"{name}\t{text}" for name, text in COMMANDS.items()]
    assert re.findall("plain,(.*)", segmentlog().stdout) == expected


@pytest.mark.parametrize("arguments", [[], ["index"]])
def test_a_group_without_a_command_prints_its_help(segmentlog, arguments):
    assert segmentlog(*arguments) == segmentlog(*arguments, "--help")


def test_the_help_imports_neither_numpy_nor_arrow_nor_rich():
    code = (
        "import sys\nfrom storage_core.cli.main import run\n"
        "try:\n    run(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        set(done.stderr.split()) & {"numpy", "pyarrow", "rich", "pyspark", "storage_core.scan.plan"} == set()
    )


DATA = "{data}"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["nonsense"], "No such command 'nonsense'. Name one first: segmentlog inventory DIR."),
        (["inventry"], "Did you mean 'inventory'?"),
        ([DATA], "Name one first: segmentlog inventory DIR."),
        (["index", DATA], "Name one first: segmentlog index rebuild DIR."),
        (["index", "rebuid", DATA], "Did you mean 'rebuild'?"),
        (["cat", DATA, "--topic", "orders"], "No such option '--topic'. Did you mean '--subscribe'?"),
        (["inventory", DATA, "--partition"], "Did you mean '--partitions'? Try"),
        (["recover", DATA, "--no-lnk"], "Did you mean '--no-link'? Try"),
        (["plan", DATA, "--partitions", "{}"], "Did you mean '--assign'? Try"),
        (["cat", DATA, "--hlep"], "Did you mean '--help'? Try"),
        (["cat", DATA, "--group", "g"], "No such option '--group'. Try"),
        (["offsets", DATA, "--group"], "requires an argument. Try 'segmentlog offsets --help'"),
        (["index", "rebuild", DATA, "--to"], "requires an argument. Try 'segmentlog index rebuild --help'"),
        (["--nonsense"], "No such option"),
        (["--topic", "orders", "cat", DATA], "No such option '--topic'. Try"),
        (["inventory", DATA, "--filter", "offset > 5"], "No such option '--filter'. Try"),
        (["cat"], "Missing argument 'DIR...'"),
        (["cat", ""], "found an empty path"),
        (["cat", "--nonsense", "x"], "No such option"),
        (["cat", "--where", "ofset > 5", "x"], "Did you mean 'offset'?"),
        (["verify", "--output", "xml", "x"], "'xml' is not one of"),
        (["dump"], "There is nothing to dump"),
        (["cat", DATA, "-f", "%x"], "no token"),
        (["cat", DATA, "-f", "%o", "-J"], "not for JSON lines"),
        (["cat", DATA, "-K", ":", "-o", "jsonl"], "not for JSON lines"),
        (["cat", DATA, "-f", "%o", "-K", ":"], "write it into --format"),
        (["cat", DATA, "--subscribe", "order"], "does not exist"),
        (["cat", DATA, "--follow", "--ending-timestamp", "5"], "has no end"),
        (["cat", DATA, "--max-count", "-1"], "range"),
        (["cat", DATA, "--last", "abc"], "'abc' is not a whole number. Try"),
        (["cat", DATA, "--poll-interval", "abc"], "'abc' is not a number. Try"),
        (["cat", DATA, "--starting-timestmp", "5"], "Did you mean '--starting-timestamp'? Try"),
        (["offsets", DATA, "--as-of", "never"], "--as-of takes"),
        (["offsets", DATA, "--reset-plan", "--output", "json"], "--reset-plan prints CSV of its own"),
        (["offsets", DATA, "--where", "key = 'k'"], "group_offsets has no such column"),
        (["plan", DATA, "--where", "offset >"], "where"),
        (["plan", DATA, "--output", "csv"], "'csv' is not one of"),
        (["plan", DATA, "--starting-offsets", '{"orders":{"0":5}}'], "KAFKA_START_OFFSET_DOES_NOT_MATCH"),
        (["report", DATA], "Missing option '--output'"),
        (["report", DATA, "-o", "-", "--subscribe", "x"], "does not exist"),
        (["transactions", DATA, "--older-than", "5 apples"], "'apples' is not a unit"),
        (["transactions", DATA, "--max-age", "soon"], "--max-age is soon"),
        (["transactions", DATA, "--now", "yesterday"], "--now"),
        (["transactions", DATA, "--longest", "0"], "--longest"),
        (["transactions", DATA, "--where", "key = 'x'"], "view=transactions has no such column"),
    ],
)
def test_wrong_usage_is_one_line_with_status_2(segmentlog, example_data, arguments: list[str], found: str):
    ended = segmentlog(*(example_data if each == DATA else each for each in arguments))
    assert ended.refused(2, found)


COMMANDS_OF_DIRECTORIES = [
    ["inventory"], ["verify"], ["cat"], ["offsets"], ["transactions"], ["plan"], ["report", "-o", "-"],
    ["recover", "--to", "new"], ["index", "rebuild", "--in-place"], ["convert", "--to", "new"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS_OF_DIRECTORIES, ids=" ".join)
def test_a_directory_that_does_not_exist_is_one_line_with_status_3(
    segmentlog, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    ended = segmentlog(*command, tmp_path / "no\x1bc such")
    assert ended.refused(3)
    assert "\x1b" not in ended.stderr


@pytest.mark.parametrize("command", COMMANDS_OF_DIRECTORIES, ids=" ".join)
def test_garbage_is_no_log_directory(segmentlog, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(bytes(range(256)) * 100)
    before = sorted(path.name for path in tmp_path.iterdir())
    ended = segmentlog(*command, tmp_path / "file")
    assert ended.status in {2, 3}
    assert ended.stderr.count("\n") == 1
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def command(monkeypatch):
    """Puts a command into the group that does what the test says."""

    def put(body):
        name = click.command("try")(body)
        monkeypatch.setitem(main_module.COMMANDS, "try", "A test.")
        monkeypatch.setattr(main_module._Commands, "get_command", lambda *_: name)

    return put


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OptionError("a is wrong"), 2),
        (CorruptRecordError("a is wrong"), 1),
        (StorageError("a is wrong"), 3),
        (PermissionError("a is wrong"), 3),
        (click.UsageError("a is wrong"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_status_and_its_line(segmentlog, command, error, status: int):
    def fail():
        raise error

    command(fail)
    ended = segmentlog("try")
    assert ended.status == status
    assert ended.stderr.strip() == "" if status == 130 else "a is wrong" in ended.stderr
    assert ended.stderr.count("\n") <= 1


def test_a_command_that_ends_itself_keeps_its_status(segmentlog, command):
    command(lambda: click.get_current_context().exit(1))
    assert segmentlog("try").status == 1


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_a_closed_pipe_ends_silently(example_data, output: str):
    """The reader is gone before the first byte, so that the first write fails, however little is printed."""
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "storage_core.cli", "inventory", str(example_data), "-o", output],
            stdout=closed,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("closed", "status", "stderr"),
    [
        (
            "1",
            3,
            b"segmentlog: Standard output is closed. Redirect it: to /dev/null if nobody reads it.\n",
        ),
        ("2", 0, b""),
    ],
)
def test_closed_streams(example_data, closed: str, status: int, stderr: bytes):
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'"$0" -m storage_core.cli transactions "$1" {closed}>&-',
            sys.executable,
            example_data,
        ],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, stderr)
    assert bool(done.stdout) == (status == 0)


def test_the_help_of_flags_speaks_of_flags_and_of_what_they_mean_to_the_command(segmentlog, command):
    @paths_argument
    @read_flags("assign", "asOf", texts={"asOf": "As they were then."})
    def show(paths, options):
        pass

    command(show)
    text = " ".join(segmentlog("try", "--help").stdout.split())
    assert "Give only one of --subscribe, --subscribe-pattern and --assign" in text
    assert "--as-of TIMESTAMP As they were then." in text


def test_the_help_of_a_flag_names_the_flags_of_options_with_values(segmentlog):
    text = " ".join(segmentlog("cat", "--help").stdout.replace("-\n", "-").split())
    assert "valueFormat" not in text
    assert "format=registry, the default is" in text


@pytest.mark.parametrize("name", ["inventory", "offsets", "transactions"])
def test_the_help_of_a_command_promises_no_option_of_reads_that_it_refuses(segmentlog, name: str):
    text = " ".join(segmentlog(name, "--help").stdout.split())
    assert "key and value" not in text
    assert "view=" not in text


@pytest.mark.parametrize(
    "name", ["inventory", "transactions", "verify", "report", "recover", "index rebuild"]
)
def test_the_help_of_commands_that_look_at_internal_topics_says_so(segmentlog, name: str):
    text = " ".join(segmentlog(*name.split(), "--help").stdout.split())
    assert "but the internal ones" not in text
    assert "with none, every topic, internal ones too." in text


def test_read_options_are_flags_with_the_documented_names(segmentlog, command):
    @paths_argument
    @read_flags("subscribe", "startingTimestamp", "where")
    def show(paths, options):
        click.echo(json.dumps([paths, options]))

    command(show)
    ended = segmentlog("try", "a", "b", "--starting-timestamp", "-10 minutes", "--where", "offset > 5")
    assert json.loads(ended.stdout) == [
        ["a", "b"],
        {"startingTimestamp": "-10 minutes", "where": "offset > 5"},
    ]
    assert flag_of("startingOffsetsByTimestampStrategy") == "--starting-offsets-by-timestamp-strategy"


ROWS = pa.table(
    {
        "name": ["plain", "a\x1b[2J\nb", None],
        "bytes": pa.array([b"text", b"\xff\xfe", None], pa.binary()),
        "time": pa.array([0, 1_700_000_000_123_000, None], pa.timestamp("us", "UTC")),
        "list": [[1, 2], [], None],
        "ok": [True, False, None],
    }
)


@pytest.fixture
def print_rows(command):
    def put(rows: pa.Table):
        @output_flag()
        def show(output: Output):
            output.write_batches(rows.schema, rows.to_batches())

        command(show)

    return put


@pytest.mark.parametrize("output", ["jsonl", "csv", "table"])
def test_times_that_no_datetime_holds_are_numbers(segmentlog, print_rows, output):
    times_us = [-1_000, 253_402_300_799_999_000, 1_700_000_000_000_000_000]
    print_rows(pa.table({"time": pa.array(times_us, pa.timestamp("us", "UTC"))}))
    ended = segmentlog("try", "-o", output)
    assert ended.status == 0
    for text in ("1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z", "1700000000000000"):
        assert text in ended.stdout


def test_rows_as_json_lines(segmentlog, print_rows):
    print_rows(ROWS)
    lines = [json.loads(line) for line in segmentlog("try", "-o", "jsonl").stdout.splitlines()]
    assert lines == [
        {"name": "plain", "bytes": "text", "time": "1970-01-01T00:00:00.000Z", "list": [1, 2], "ok": True},
        {
            "name": "a\x1b[2J\nb",
            "bytes": {"base64": "//4="},
            "time": "2023-11-14T22:13:20.123Z",
            "list": [],
            "ok": False,
        },
        {"name": None, "bytes": None, "time": None, "list": None, "ok": None},
    ]


def test_json_and_its_lines_hold_no_raw_control_byte(segmentlog, print_rows):
    print_rows(ROWS)
    for form in ("json", "jsonl"):
        assert "\x1b" not in segmentlog("try", "-o", form).stdout


def test_rows_as_one_json_list(segmentlog, print_rows):
    print_rows(ROWS)
    assert [row["ok"] for row in json.loads(segmentlog("try", "-o", "json").stdout)] == [True, False, None]
    print_rows(ROWS.slice(0, 0))
    assert json.loads(segmentlog("try", "-o", "json").stdout) == []


def test_rows_as_csv(segmentlog, print_rows):
    print_rows(ROWS.slice(0, 1))
    assert segmentlog("try", "-o", "csv").stdout == (
        'name,bytes,time,list,ok\nplain,text,1970-01-01T00:00:00.000Z,"[1, 2]",true\n'
    )


@pytest.mark.parametrize(
    ("arguments", "row_count"), [(["transactions", "--all"], 242), (["inventory"], 4), (["verify"], 0)]
)
def test_rows_as_arrow(segmentlog_process, example_data, arguments: list[str], row_count: int):
    process = segmentlog_process(*arguments, example_data, "--output", "arrow")
    printed, complaints = process.communicate()
    assert complaints == b""
    assert pa.ipc.open_stream(printed).read_all().num_rows == row_count


def test_a_table_shows_no_control_byte_and_no_markup_is_interpreted(segmentlog, print_rows):
    print_rows(pa.table({"name": ["a\x1b[2J\nb", "[red]x[/red]", "\u202eevil"]}))
    shown = segmentlog("try").stdout
    assert "a\\e[2J\\nb" in shown
    assert "[red]x[/red]" in shown
    assert "\\u202eevil" in shown


HOSTILE = [
    "a\x1b[2J",
    "\x07",
    "\x9b31m",
    "\u202egnp",
    "\u061c",
    "\u200bz",
    "\u2028",
    "\U000e0041",
    "\ufff9",
    "\x7f",
]


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_no_output_has_a_character_that_a_terminal_interprets_or_hides(segmentlog, print_rows, output: str):
    print_rows(pa.table({"name": HOSTILE, "nested": [[{"k": text}] for text in HOSTILE]}))
    shown = segmentlog("try", "-o", output).stdout
    assert shown.replace("\n", "").isprintable()
    if output == "json":
        assert [row["name"] for row in json.loads(shown)] == HOSTILE


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_a_locale_without_unicode_gets_escapes(monkeypatch, print_rows, output: str):
    print_rows(pa.table({"name": ["caf\u00e9 \u20ac"]}))
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, "ascii", write_through=True))
    with pytest.raises(SystemExit) as ended:
        run(["try", "-o", output])
    assert not ended.value.code
    if output in ("json", "jsonl"):
        assert "caf\u00e9 \u20ac" in str(json.loads(stream.getvalue()))
    else:
        assert b"caf\\xe9 \\u20ac" in stream.getvalue()


def test_lines_of_a_table_in_a_pipe_are_not_padded(segmentlog, example_data):
    for command in (["plan", "--pieces"], ["inventory"], ["verify"]):
        shown = segmentlog(*command, example_data).stdout
        assert not [line for line in shown.splitlines() if line.endswith(" ")]


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        (
            "cat",
            ("--starting-timestamp", "2100-01-01"),
            "Set --starting-offsets-by-timestamp-strategy=latest",
        ),
        ("plan", ("--ending-at", "x"), "--ending-at is 'x'"),
        ("cat", ("--mode", "x"), "--mode is 'x'"),
        ("cat", ("--subscribe", "subscribe"), "names the topic 'subscribe'"),
        ("cat", ("--remote-storage", "/data/a mode=full"), "[/data/a mode=full]"),
        ("cat", ("--remote-storage", "/data/mode=full"), "[/data/mode=full]"),
        ("cat", ("--remote-storage", "/data/timeZone/mode"), "[/data/timeZone/mode]"),
        ("offsets", ("--as-of", "never"), "--as-of takes epoch milliseconds"),
    ],
)
def test_an_error_names_the_flag_of_an_option(segmentlog, example_data, command, flags, said):
    assert said in segmentlog(command, example_data, *flags).stderr


def test_a_spreadsheet_runs_no_cell_of_csv(segmentlog, print_rows):
    print_rows(pa.table({"name": ["=1+1", "+1", "-1", "@x", "a=1", ""], "n": [-1, -2, -3, 4, 5, 6]}))
    quoted = segmentlog("try", "-o", "csv").stdout
    assert quoted == "name,n\n'=1+1,-1\n'+1,-2\n'-1,-3\n'@x,4\na=1,5\n,6\n"
    plain = segmentlog("try", "-o", "csv", "--csv-formulas").stdout
    assert plain == "name,n\n=1+1,-1\n+1,-2\n-1,-3\n@x,4\na=1,5\n,6\n"


@pytest.mark.parametrize(("count", "left_out"), [(1_234, "234 more rows"), (1_001, "1 more row")])
def test_a_long_table_says_how_many_rows_it_leaves_out(segmentlog, print_rows, count: int, left_out: str):
    print_rows(pa.table({"n": list(range(count))}))
    shown = segmentlog("try").stdout.splitlines()
    assert len(shown) == 1_002
    assert shown[-1].startswith(f"and {left_out}: ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("äöü €", "äöü €"),
        ("\x00\x07\x7f\x9b", "\\x00\\x07\\x7f\\x9b"),
        ("a\tb\r", "a\\tb\\r"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_is_printable(text: str, shown: str):
    assert printable(text) == shown


@dataclasses.dataclass(frozen=True)
class _Report:
    log_end_offset: int
    min_timestamp_ms: int
    by_topic: dict


def test_values_in_json():
    assert json_value(_Report(7, -1, {"a_b": 1})) == {
        "logEndOffset": 7,
        "minTimestamp": "1969-12-31T23:59:59.999Z",
        "byTopic": {"a_b": 1},
    }
    assert json_value({"a": (1, b"x", b"\xff"), 5: None}) == {"a": [1, "x", {"base64": "/w=="}], "5": None}
    assert json_value({os.fsdecode(b"\xff"): [os.fsdecode(b"\xc3\xa4\xfe")]}) == {"\\xff": ["ä\\xfe"]}


def test_progress_is_silent_without_a_terminal(capfd):
    with progress("work", 10, quiet=False) as advance:
        advance(5)
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_while_modules_are_imported_ends_silently():
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "from storage_core.cli import main\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("library", ["click", "jinja2"])
def test_without_a_library_of_the_extra_the_command_says_what_to_install(library, example_data, tmp_path):
    code = f"import sys; sys.modules[{library!r}] = None; from storage_core.cli import main; main()"
    arguments = ["report", example_data, "-o", tmp_path / "report.html"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"segmentlog: the command needs {library}")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_group_is_run_with_the_arguments_of_the_process(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["segmentlog", "--version"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert not ended.value.code
    assert capfd.readouterr().out.startswith("segmentlog ")


def test_warnings_are_lines_on_standard_error_each_once(segmentlog, command):
    def warn():
        for _ in range(3):
            logging.getLogger("storage_core.scan").warning("left out %s", "a\x1b[31m\nb")

    command(warn)
    ended = segmentlog("try")
    assert ended.stderr == "segmentlog: left out a\\e[31m b\n"
    assert segmentlog("try").stderr == ended.stderr


def test_a_warning_names_the_flag_of_an_option(segmentlog, tmp_path):
    write(tmp_path / "logs", 1, topic="clicks")
    write(tmp_path / "elsewhere", 1)
    (tmp_path / "logs" / "orders-0").symlink_to(tmp_path / "elsewhere" / "orders-0")
    assert "Set --follow-symlinks to read them." in segmentlog("cat", tmp_path / "logs").stderr


def test_one_thing_is_no_plural(segmentlog, tmp_path):
    write(tmp_path / "logs", 1)
    said = {
        ("verify",): ": 1 partition, 1 segment, 1 batch, ",
        ("inventory",): "; 1 partition, 1 segment; ",
        ("plan",): "\n1 of 1 partition, 1 of 1 segment, ",
        ("plan", "--pieces"): " bytes, 1 batch in 1 piece for 1 task.\nPlanning opened ",
        ("convert", "--to", tmp_path / "parquet"): "\n1 row in 1 file, ",
        ("recover", "--dry-run"): "\n1 partition, 1 record. Nothing was lost.",
        (
            "index",
            "rebuild",
            "--all",
            "--to",
            tmp_path / "rebuilt",
        ): "1 partition, 1 segment: every index agrees",
    }
    for command, text in said.items():
        assert text in segmentlog(*command, tmp_path / "logs").stdout


# -- No match --------


ARGUMENTS = {
    "convert": ["--to", "{target}"],
    "recover": ["--to", "{target}"],
    "report": ["--output", "{target}.html"],
}
# `offsets` chooses among what groups have committed: tests/cli/test_offsets.py.
# `schemas` reads one topic, whose name is an option: tests/cli/test_schemas.py.
OTHERS = {"offsets", "index", "schemas"}


@pytest.mark.parametrize("command", [*sorted(COMMANDS.keys() - OTHERS), "index rebuild"])
@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("--subscribe-pattern", "nothing-.*", "subscribe-pattern 'nothing-.*' matches no topic."),
        ("--assign", '{"orders":[0,7]}', "assign names partitions that do not exist: [orders-7]."),
        ("--subscribe", "ordres", "the topic 'ordres', which does not exist"),
    ],
)
def test_it_ends_with_status_2(segmentlog, tmp_path, command, flag, value, problem):
    write(tmp_path / "logs", 3)
    more = [each.format(target=tmp_path / "out") for each in ARGUMENTS.get(command, [])]
    if command == "index rebuild":
        more = ["--to", tmp_path / "out"]
    ended = segmentlog(*command.split(), tmp_path / "logs", flag, value, *more)
    assert (ended.status, ended.stdout) == (2, "")
    assert problem in ended.stderr
    assert not (tmp_path / "out").exists()
