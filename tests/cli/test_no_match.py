"""A pattern or a partition that matches nothing: wrong usage, for every command."""

from __future__ import annotations

import pytest

from storage_core.cli.main import COMMANDS
from tests.log.logs import write

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
