"""What a condition leaves of a partition, and what is said of the rest."""

from __future__ import annotations

import logging

import pytest

from storage_core.filesystem import FileSystem
from storage_core.options import parse_read_options
from storage_core.options.predicate import And, Comparison, In, Not, Or, Unknown
from storage_core.scan import time_pruning as time_pruning_module
from storage_core.scan.plan import plan_scan
from storage_core.scan.resolve import resolve
from storage_core.scan.time_pruning import prune_range

VALUE = b"x" * 20_000
START_MS = 1_000_000


@pytest.fixture
def log(log_root, record_of):
    """Five segments of 400 KB, in batches of 20 KB: offset n has timestamp START_MS + 10 * n; a hundred offsets in all."""
    log = log_root.rows()
    for number in range(100):
        log.append(record_of(0, START_MS + 10 * number, b"k", VALUE))
        if number % 20 == 19 and number < 99:
            log.roll()
    return log.write()


@pytest.fixture
def pruned(log):
    """Return the offsets that a condition leaves."""

    def pruned(predicate, **options):
        parsed = parse_read_options({"path": str(log.path), **options})
        (wanted,) = resolve(FileSystem(), parsed).partitions
        left = prune_range(wanted, predicate, parsed)
        return left.start_offset, left.end_offset

    return pruned


def offset(operator, value):
    return Comparison("offset", operator, value)


def timestamp(operator, after_ms):
    return Comparison("timestamp", operator, (START_MS + after_ms) * 1000)


NOTHING = (0, 0)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (And(()), (0, 100)),
        (offset(">=", 30), (30, 100)),
        (offset("<", 30), (0, 30)),
        (offset("<", -5), NOTHING),
        (offset(">", 2**63 - 1), NOTHING),
        (In("offset", (28, 49)), (28, 50)),
        (And((offset(">=", 30), offset("<", 30))), NOTHING),
        (Unknown(), NOTHING),
        (Comparison("topic", "=", "others"), NOTHING),
        (Or((Comparison("topic", "=", "others"), And((offset(">=", 8), offset("<", 12))))), (8, 12)),
        (Comparison("key", "=", b"k"), (0, 100)),
        (timestamp(">=", 500), (0, 100)),
        (timestamp("<", 500), (0, 100)),
        (And((timestamp(">=", 500), offset("<", 70))), (0, 70)),
        (And((timestamp(">=", 500), timestamp("<", 400))), NOTHING),
    ],
)
def test_the_ends_that_a_condition_rules_out_are_left_out(pruned, predicate, expected):
    assert pruned(predicate) == expected


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        # 60 KB at the beginning of a segment.
        (timestamp(">=", 30), (0, 100)),
        (timestamp(">=", 230), (20, 100)),
    ],
)
def test_what_saves_less_than_it_costs_is_read(pruned, predicate, expected):
    assert pruned(predicate, max_timestamp_disorder="0 ms") == expected


@pytest.mark.parametrize(
    ("predicate", "disorder", "expected"),
    [
        (timestamp(">=", 500), "0 ms", (50, 100)),
        (timestamp(">", 500), "0 ms", (51, 100)),
        (timestamp(">=", 500), "30 ms", (47, 100)),
        (timestamp(">=", 500), "1 hour", (0, 100)),
        (timestamp(">", 10_000), "0 ms", (100, 100)),
        (Not(timestamp("<", 500)), "0 ms", (50, 100)),
        (timestamp("=", 505), "0 ms", (51, 51)),
        (And((timestamp(">=", 500), offset("<", 70))), "0 ms", (50, 70)),
    ],
)
def test_bounded_disorder_lets_a_read_start_later(pruned, predicate, disorder, expected):
    assert pruned(predicate, max_timestamp_disorder=disorder) == expected


def test_a_promise_is_proven_by_a_record_not_by_a_header(log_root, record_of):
    """All headers claim that time begins at 500 ms; so the records before are nowhere to be seen in headers."""
    log = log_root.rows("claims")
    for number in range(100):
        log.append(
            record_of(0, START_MS + 10 * number, b"k", VALUE), claimed_max_ms=START_MS + 10 * (number - 40)
        )
    log.write()
    parsed = parse_read_options({"path": str(log.path), "max_timestamp_disorder": "100 ms"})
    (wanted,) = resolve(FileSystem(), parsed).partitions
    left = prune_range(wanted, timestamp(">=", 500), parsed)
    # By the headers, it could begin at offset 80.
    assert left.start_offset == 0


@pytest.mark.parametrize("is_committed", [False, True])
def test_an_aborted_record_proves_nothing_to_who_does_not_see_it(log_root, record_of, is_committed):
    log = log_root.rows("transactional")
    for number in range(30):
        log.append(record_of(0, START_MS + 10 * number, b"k", VALUE), transactional=True, producer_id=7)
    log.abort(7)
    log.append(record_of(0, START_MS + 500, b"k", VALUE)).write()
    parsed = parse_read_options(
        {
            "path": str(log.path),
            "isolation_level": "read_committed" if is_committed else "read_uncommitted",
            "max_timestamp_disorder": 0,
        }
    )
    (wanted,) = resolve(FileSystem(), parsed).partitions
    left = prune_range(wanted, timestamp(">=", 200), parsed)
    assert left.start_offset == (0 if is_committed else 20)


def test_with_log_append_time_no_promise_is_needed(log_root, record_of):
    log = log_root.rows("append-time")
    for number in range(100):
        # The records' own timestamps do not count.
        log.append(record_of(0, 9_000_000, b"k", VALUE), append_time_ms=START_MS + 10 * number)
        if number == 19:
            log.roll()
    log.write()
    parsed = parse_read_options({"path": str(log.path)})
    (wanted,) = resolve(FileSystem(), parsed).partitions
    assert prune_range(wanted, timestamp(">=", 500), parsed).start_offset == 50


def test_a_batch_with_create_time_ends_what_append_time_proves(log_root, record_of):
    log = log_root.rows("mixed")
    for number in range(100):
        append_time_ms = None if number == 30 else START_MS + 10 * number
        log.append(
            record_of(0, START_MS + 900, b"k", VALUE), append_time_ms=append_time_ms, claimed_max_ms=-1
        )
    log.write()
    parsed = parse_read_options({"path": str(log.path)})
    (wanted,) = resolve(FileSystem(), parsed).partitions
    assert prune_range(wanted, timestamp(">=", 500), parsed).start_offset == 30


@pytest.mark.parametrize(
    ("predicate", "disorder", "expected"),
    [
        (timestamp("<", 500), "0 ms", (0, 50)),
        (timestamp("<", 500), "30 ms", (0, 53)),
        (timestamp("<=", 500), "30 ms", (0, 54)),
        (timestamp("<", 500), "90 ms", (0, 59)),
        (timestamp("<", 500), "1 hour", (0, 100)),
        (timestamp("<", -500), "100 ms", NOTHING),
        (And((timestamp(">=", 300), timestamp("<", 500))), "20 ms", (28, 52)),
        (timestamp("=", 500), "0 ms", (50, 51)),
        (And((timestamp("<", 500), offset("<", 45))), "0 ms", (0, 45)),
        (Or((timestamp("<", 500), offset("=", 99))), "0 ms", (0, 100)),
    ],
)
def test_bounded_disorder_lets_a_read_end_earlier(pruned, predicate, disorder, expected):
    assert pruned(predicate, max_timestamp_disorder=disorder) == expected


def test_offsets_that_the_options_leave_out_stay_out(pruned):
    bounds = {
        "starting_offsets": {"events": {"0": 10}},
        "ending_offsets": {"events": {"0": 65}},
    }
    assert pruned(And((offset(">=", 5), offset("<", 80))), **bounds) == (10, 65)
    assert pruned(And((offset(">=", 18), offset("<", 63))), **bounds) == (18, 63)
    assert pruned(And((offset(">=", 1), offset("<", 64))), use_indexes=False, **bounds) == (10, 64)
    assert pruned(timestamp(">=", 950), max_timestamp_disorder="0 ms", **bounds) == (65, 65)
    assert pruned(offset(">=", 80), **bounds) == (10, 10)


def test_a_small_segment_is_read_as_a_whole(log_root):
    log = log_root.rows("small").values(10).roll().values(10).roll().values(10).write()
    parsed = parse_read_options({"path": str(log.path)})
    (wanted,) = resolve(FileSystem(), parsed).partitions
    left = prune_range(wanted, And((offset(">=", 12), offset("<", 18))), parsed)
    assert (left.start_offset, left.end_offset) == (10, 20)


def test_where_a_condition_moves_no_end_no_file_is_opened(log):
    filesystem = FileSystem()
    parsed = parse_read_options({"path": str(log.path)})
    (wanted,) = resolve(filesystem, parsed).partitions
    opened = filesystem.statistics.files_opened
    left = prune_range(wanted, Comparison("key", "=", b"k"), parsed)
    assert (left.start_offset, left.end_offset) == (0, 100)
    assert filesystem.statistics.files_opened == opened


def test_without_indexes_large_batches_are_found_by_a_walk(pruned):
    predicate = And((offset(">=", 30), offset("<", 70)))
    assert pruned(predicate, use_indexes=False) == (30, 70)


def test_without_indexes_small_batches_are_read(log_root, record_of):
    log = log_root.rows("small")
    for number in range(100):
        log.append(record_of(0, START_MS + 10 * number, b"k", b"x" * 5000))
    log.write(indexes=False)
    parsed = parse_read_options({"path": str(log.path)})
    (wanted,) = resolve(FileSystem(), parsed).partitions
    left = prune_range(wanted, And((offset(">=", 30), offset("<", 70))), parsed)
    assert (left.start_offset, left.end_offset) == (0, 100)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_aborted_transactions_are_looked_for_once(log_root, record_of, isolation):
    log = log_root.rows("transactional")
    for number in range(30):
        log.append(record_of(0, START_MS + 10 * number, b"k", VALUE), transactional=True, producer_id=7)
    log.abort(7).write()
    parsed = parse_read_options(
        {"path": str(log.path), "isolation_level": isolation, "max_timestamp_disorder": 0}
    )
    (wanted,) = resolve(FileSystem(), parsed).partitions
    left = prune_range(wanted, timestamp("<", 100), parsed)
    # Records that no reader sees do not end a read.
    assert left.end_offset == (10 if isolation == "read_uncommitted" else 31)
    if isolation == "read_uncommitted":
        assert left.aborted is None
    else:
        assert [each.first_offset for each in left.aborted.touching(0, 31)] == [0]


# -- What is said --------


def said(log, caplog, *, level=logging.INFO, **options):
    caplog.clear()
    with caplog.at_level(level, logger="storage_core.scan.time_pruning"):
        plan_scan(FileSystem(), parse_read_options({"path": str(log.path), **options}))
    return [record for record in caplog.records if record.name == "storage_core.scan.time_pruning"]


def test_one_line_says_how_much_is_read_beyond_an_upper_bound(log, caplog):
    (line,) = said(log, caplog, where=timestamp("<", 500))
    sizes = [log.log_path(base).stat().st_size for base in (40, 60, 80)]
    beyond = sizes[0] // 2 + sizes[1] + sizes[2]
    assert f"about {beyond} bytes in 3 segments of 1 partitions are read" in line.getMessage()
    assert "Set maxTimestampDisorder" in line.getMessage()
    assert line.levelno == logging.INFO


def test_one_line_says_how_much_is_read_before_a_lower_bound(log, caplog):
    (line,) = said(log, caplog, where=timestamp(">=", 500))
    sizes = [log.log_path(base).stat().st_size for base in (0, 20, 40)]
    assert (
        f"about {sizes[0] + sizes[1] + sizes[2] // 2} bytes in 3 segments of 1 partitions are read"
        in line.getMessage()
    )
    (line,) = said(log, caplog, where=And((timestamp(">=", 500), timestamp("<", 600))))
    assert (
        f"about {5 * sizes[0] - sizes[0] // 2} bytes in 5 segments of 1 partitions are read"
        in line.getMessage()
    )


def test_much_that_is_read_in_vain_is_worth_a_warning(log, caplog, monkeypatch):
    monkeypatch.setattr(time_pruning_module, "_WORTH_A_WARNING_BYTES", 100_000)
    (line,) = said(log, caplog, level=logging.WARNING, where=timestamp("<", 500))
    assert line.levelno == logging.WARNING


@pytest.mark.parametrize(
    "options",
    [
        {"where": timestamp(">=", 0)},
        {"where": timestamp(">=", 500), "max_timestamp_disorder": "0 ms"},
        {"where": timestamp("<", 5000)},
        {"where": And((timestamp("<", 500), offset("<", 40)))},
        {"where": timestamp("<", 500), "max_timestamp_disorder": "1 hour"},
        {},
    ],
)
def test_nothing_is_said_where_nothing_is_read_in_vain(log, caplog, options):
    assert said(log, caplog, **options) == []


def test_nothing_is_looked_up_for_a_line_that_nobody_sees(log, monkeypatch):
    monkeypatch.delattr(time_pruning_module, "_sizes_beyond")
    plan_scan(FileSystem(), parse_read_options({"path": str(log.path), "where": timestamp("<", 500)}))
