"""What a read says of a store that refuses or fails for good, from its listing, its planning or its middle on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import storage_core
from storage_core.errors import (
    DataLossError,
    LogDirectoryError,
    SegmentLogError,
    StorageError,
    UnreadableError,
)
from storage_core.options import options_of
from storage_core.scan.plan import plan_scan
from storage_core.scan.read import read_task
from storage_core.scan.spans import project, record_schema
from storage_core.tier import open_file_system
from tests.conformance.archives import unpack_case
from tests.object_stores import faults
from tests.object_stores.object_server import SECRET_ACCESS_KEY, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.object_stores.object_server import Bucket

# What happens: the error, and what its message says.
FAULTS: dict[str, tuple[Any, type[SegmentLogError], str]] = {
    "denied": (faults.denied(), UnreadableError, "403 AccessDenied"),
    "expired": (faults.expired(), UnreadableError, "expired"),
    "elsewhere": (faults.elsewhere(), LogDirectoryError, "another region"),
    "no bucket": (faults.no_bucket(), LogDirectoryError, "No such bucket"),
    "throttled": (faults.throttled(), StorageError, "503 SlowDown"),
    "broken": (faults.broken(), StorageError, "500 InternalError"),
    "closed": (faults.closed(), StorageError, "tried again"),
    "reset": (faults.reset(), StorageError, "tried again"),
    "cut": (faults.cut(), StorageError, "tried again"),
}
# What can only be said of an object.
REPLACED = {"missing": faults.missing(), "changed": faults.changed()}
LIMITS = {"storage.max-retries": "1", "storage.timeout": "5"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_case("v2-zstd", tmp_path_factory.mktemp("logs") / "case")[0]


@pytest.fixture
def filled(quick_bucket: Bucket, logs: Path) -> Iterator[Bucket]:
    quick_bucket.put_tree(logs, "logs")
    return quick_bucket


def read(bucket: Bucket, **options: Any) -> Any:
    return storage_core.read_table(
        bucket.uri("logs"), storage_options={**bucket.storage_options, **LIMITS}, **options
    )


def rule_from(phase: str, fault: Any, bucket: Bucket, kind: str = "") -> Rule:
    """Return the fault from a part of the read on, for good."""
    read(bucket)
    count = len([each for each in bucket.exchanges if kind in {"", each.kind}])
    bucket.forget()
    return Rule(fault, kind, skip={"listing": 0, "planning": 1, "reading": count // 2}[phase], times=None)


@pytest.mark.cases(4, 25)
@pytest.mark.parametrize(
    ("what", "phase"),
    [
        (what, phase)
        for what in FAULTS
        for phase in ("listing", "planning", "reading")
        # An object whose bucket is gone is gone itself.
        if (what, phase) != ("no bucket", "reading")
    ],
)
def test_a_fault_that_lasts_is_one_error(filled, what, phase):
    fault, kind, said = FAULTS[what]
    filled.rules.append(rule_from(phase, fault, filled))

    with pytest.raises(kind) as caught:
        read(filled)
    message = str(caught.value)
    assert said in message
    assert filled.uri() in message
    assert "\n" not in message
    assert SECRET_ACCESS_KEY not in message


@pytest.mark.parametrize("phase", ["planning", "reading"])
@pytest.mark.parametrize("what", REPLACED)
def test_what_is_always_another_object_is_data_loss(filled, what, phase):
    filled.rules.append(rule_from(phase, REPLACED[what], filled, "GET"))

    with pytest.raises(DataLossError, match=filled.uri()):
        read(filled)


@pytest.mark.cases(1, 4)
@pytest.mark.parametrize("what", ["throttled", "broken", "closed", "reset"])
def test_each_request_may_fail_once(filled, logs, what):
    filled.rules.append(Rule(FAULTS[what][0], seed=1))

    assert read(filled).equals(storage_core.read_table(logs))
    assert filled.rules[0].hits > 20


@pytest.mark.parametrize("what", REPLACED)
def test_an_object_that_is_replaced_once_is_read_anew(filled, logs, what):
    filled.rules.append(rule_from("reading", REPLACED[what], filled, "GET"))
    filled.rules[0].times = 1

    assert read(filled).equals(storage_core.read_table(logs))
    assert filled.counts()["LIST"] > 1


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_segment_in_the_middle_that_is_deleted_is_data_loss(filled, is_compacted):
    keys = sorted(each.key for each in filled.entries() if each.key.endswith(".log"))
    key = next(each for each in keys if each.startswith(keys[0].rpartition("/")[0]) and each != keys[0])
    topic, _, partition = key.split("/")[1].rpartition("-")
    if is_compacted:
        filled.put("logs/cleaner-offset-checkpoint", f"0\n1\n{topic} {partition} 1\n".encode())
    options = options_of([filled.uri("logs")], {"storage_options": {**filled.storage_options, **LIMITS}})
    plan = plan_scan(open_file_system(options.storage), options)
    filled.delete(key)

    def rows_of(task: Any) -> int:
        batches = read_task(open_file_system(options.storage), task, project(record_schema(), ("offset",)))
        return sum(batch.num_rows for batch in batches)

    if is_compacted:
        assert sum(map(rows_of, plan.tasks)) > 0
    else:
        with pytest.raises(DataLossError, match="data was deleted"):
            list(map(rows_of, plan.tasks))
