"""Streams beside a broker: whatever is killed, each record is in each output once, and in order.

Drivers that are killed while a broker is produced to, and what their outputs must hold in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

from storage_core import read_table
from tests.interop.broker import KafkaBroker
from tests.interop.clients import (
    READ_COMMITTED,
    consume_partitions,
    create_topic,
    new_producer,
    offsets_at,
    wait_for_high_watermarks,
    wait_for_markers,
    wait_until,
)
from tests.interop.streaming_driver import STEPS, kill_session
from tests.spark_settings import AUTH_SOCKET_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Producer


REPOSITORY: Final = Path(__file__).parents[2]
PLAIN, TRANSACTIONAL = "plain", "transactional"
# Segments of some hundred records; the high watermark is some tenths of a second old.
BROKER_SETTINGS: Final = {
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 100,
}
_TIMEOUT_S: Final = 400.0
_FIRST_PARTITIONS: Final = 3
# Of each partition, so that the comparison is worth something.
_FEWEST_ROWS: Final = 50
# Imported, so that workers find its classes under the same name.
_PROGRAM: Final = "import sys; from tests.interop.streaming_driver import main; main(*sys.argv[1:])"
Place = tuple[str, int]


class Driver:
    """A driver in a session of its own."""

    def __init__(self, folder: Path, logs: Path, *mode: str) -> None:
        # A worker's output must not fill a pipe that nobody reads.
        self.log_path = folder / "driver.log"
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(folder), str(logs), *mode],
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_AUTH_SOCKET_TIMEOUT": AUTH_SOCKET_TIMEOUT_S,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": str(REPOSITORY),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )

    def wait_for(self, word: str) -> None:
        """Wait until the driver says something."""
        end = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < end:
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                said = self._process.stdout.readline().decode().strip()
                if said == word:
                    return
                assert said or self._process.poll() is None, f"the driver ended: {self.log_tail()}"
        raise TimeoutError(f"The driver did not say {word!r}: {self.log_tail()}")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill all processes of the driver, and wait until none is left."""
        session = self._process.pid
        kill_session(session)
        self._process.wait(_TIMEOUT_S)
        self._process.stdout.close()
        # Workers hold the locks of files until they are gone.
        end = time.monotonic() + _TIMEOUT_S
        while processes_of(session):
            assert time.monotonic() < end, "processes of a killed driver are left"
            kill_session(session)
            time.sleep(0.02)

    def kill_a_worker(self, rng: random.Random) -> None:
        """Kill one of the Python processes that are not the driver's own."""
        workers = [
            process for process, name in processes_of(self._process.pid).items() if name.startswith("python")
        ]
        workers = [process for process in workers if process != self._process.pid]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)

    def log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-3000:]


def processes_of(session: int) -> dict[int, str]:
    """Return the living processes of a session, with their names."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                name, _, rest = entry.joinpath("stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found[int(entry.name)] = name
    return found


class Workload:
    """Produces to both topics in a thread: plain records, and transactions of which some end late or abort."""

    def __init__(self, broker: KafkaBroker, seed: int) -> None:
        self._broker = broker
        self._rng = random.Random(seed)
        self._is_over = threading.Event()
        self._partitions = _FIRST_PARTITIONS
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        settings = {"internal_segment_bytes": 40_000, "segment_ms": 10**12, "retention_ms": -1}
        create_topic(self._broker, PLAIN, self._partitions, **settings)
        create_topic(self._broker, TRANSACTIONAL, 2, **settings)
        self._thread.start()

    def add_partition(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap_servers})
        admin.create_partitions([NewPartitions(PLAIN, self._partitions + 1)])[PLAIN].result(_TIMEOUT_S)
        self._partitions += 1

    def stop(self) -> None:
        """End production; all transactions have ended then."""
        self._is_over.set()
        self._thread.join(_TIMEOUT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def places(self) -> list[Place]:
        return [(PLAIN, number) for number in range(self._partitions)] + [(TRANSACTIONAL, n) for n in (0, 1)]

    def _run(self) -> None:
        try:
            self._produce()
        except BaseException as error:  # noqa: BLE001  (raised by stop)
            self.error = error

    def _produce(self) -> None:
        plain = new_producer(self._broker, linger_ms=20, enable_idempotence=True)
        partitions = _FIRST_PARTITIONS
        number = 0
        while not self._is_over.is_set():
            if self._partitions > partitions:
                # A producer learns of partitions from time to time; a new one asks at once.
                partitions = self._partitions
                assert plain.flush(_TIMEOUT_S) == 0
                plain = new_producer(self._broker, linger_ms=20, enable_idempotence=True)
                wait_until(partial(self._is_known, plain, partitions), "the new partition is not known")
            for each in range(20):
                plain.produce(PLAIN, b"plain %d %d" % (number, each), partition=each % partitions)
            number += 1
            plain.poll(0)
            if number % 5 == 0:
                # A broker that was killed forgets open transactions of this client.
                with contextlib.suppress(KafkaException):
                    self._transaction(number)
            # Slower than the queries, so that nothing piles up.
            self._is_over.wait(0.1)
        assert plain.flush(_TIMEOUT_S) == 0

    def _is_known(self, producer: Producer, partitions: int) -> bool:
        """Return True once the broker names all partitions: the controller says so first."""
        return len(producer.list_topics(PLAIN, _TIMEOUT_S).topics[PLAIN].partitions) == partitions

    def _transaction(self, number: int) -> None:
        producer = new_producer(
            self._broker, transactional_id="campaign", linger_ms=5, transaction_timeout_ms=10_000
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for each in range(self._rng.randrange(1, 30)):
            producer.produce(TRANSACTIONAL, b"transactional %d %d" % (number, each), partition=each % 2)
        producer.flush(30)
        # Some end late.
        self._is_over.wait(self._rng.choice((0, 0, 0.7)))
        if self._rng.random() < 0.3:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


@dataclass
class Campaign:
    """Drivers that are killed one after the other.

    Attributes:
        consumed: What a consumer has got, by place: values by offset. Deleted records are among them.
        kills: How many, by what they hit.
    """

    broker: KafkaBroker
    folder: Path
    seed: int
    consumed: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.workload = Workload(self.broker, self.seed)

    def run(self, kills: int) -> None:
        """Kill drivers and workers, drain, and compare."""
        self.workload.start()
        lives = list(_lives(kills))
        events = (
            (len(lives) // 4, self.workload.add_partition),
            (len(lives) // 2, self.broker.restart),
            (3 * len(lives) // 4, self._crash_broker),
        )
        for number, steps in enumerate(lives):
            for when, happen in events:
                if when == number:
                    happen()
            if number % 2:
                self._delete_what_was_delivered()
            self._kill(steps)
        wait_until(self._has_enough, "the workload writes too little")
        self.workload.stop()
        self._drain()
        self._consume()
        self._compare()

    def _crash_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def _kill(self, steps: list[str]) -> None:
        """Kill the workers of one driver at all steps but the last, and the driver at the last."""
        driver = Driver(self.folder, self.broker.log_directory)
        try:
            driver.wait_for("started")
            for step in steps[:-1]:
                self._kill_at(driver, step, "worker")
            self._kill_at(driver, steps[-1], "driver")
        finally:
            driver.kill()

    def _kill_at(self, driver: Driver, step: str, target: str) -> None:
        time.sleep(self.rng.random())
        if step in STEPS:
            self._wait_for_step(driver, step, target)
        elif target == "worker":
            driver.kill_a_worker(self.rng)
        else:
            time.sleep(3 * self.rng.random())
            driver.kill()
        self.kills[f"{step}, {target}"] += 1

    def _wait_for_step(self, driver: Driver, step: str, target: str) -> None:
        """Name the step, and wait until a process has come to it."""
        path = self.folder / "step"
        path.with_suffix(".new").write_text(f"{step}:{target}")
        path.with_suffix(".new").rename(path)
        end = time.monotonic() + _TIMEOUT_S
        while path.exists():
            assert driver.is_alive(), driver.log_tail()
            assert time.monotonic() < end, f"no process came to {step!r}: {driver.log_tail()}"
            time.sleep(0.02)

    def _consume(self) -> None:
        """Note what a consumer gets now; records that are deleted later stay noted."""
        for place, got in consume_partitions(self.broker, self.workload.places(), READ_COMMITTED).items():
            assert got.error is None, f"{place}: {got.error}"
            self.consumed.setdefault(place, {}).update({row.offset: row.value for row in got.rows})

    def _has_enough(self) -> bool:
        self._consume()
        return all(len(self.consumed[place]) > _FEWEST_ROWS for place in self.workload.places())

    def _delete_what_was_delivered(self) -> None:
        """Delete records that both queries have finished with."""
        self._consume()
        ends = [self._committed_offsets(name) for name in ("copied", "parquet")]
        before = [
            TopicPartition(*place, min(each.get(place, 0) for each in ends))
            for place in self.workload.places()
            if all(each.get(place, 0) for each in ends)
        ]
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for answer in admin.delete_records(before).values() if before else ():
            answer.result(_TIMEOUT_S)

    def _committed_offsets(self, name: str) -> dict[Place, int]:
        """Return where the last batch ends that a query has committed."""
        checkpoint = self.folder / f"checkpoint-{name}"
        commits = checkpoint / "commits"
        numbers = (
            [int(path.name) for path in commits.iterdir() if path.name.isdecimal()]
            if commits.exists()
            else []
        )
        if not numbers:
            return {}
        lines = (checkpoint / "offsets" / str(max(numbers))).read_text().splitlines()
        return {
            (topic, int(number)): offset
            for topic, by_partition in json.loads(lines[-1]).items()
            for number, offset in by_partition.items()
        }

    def _drain(self) -> None:
        places = self.workload.places()
        wait_for_markers(self.broker, places)
        ends = offsets_at(self.broker, places, OffsetSpec.latest())
        wait_for_high_watermarks(self.broker, {place: end.offset for place, end in ends.items()})
        driver = Driver(self.folder, self.broker.log_directory, "drain")
        try:
            driver.wait_for("drained")
        finally:
            driver.kill()

    def _compare(self) -> None:
        copied, parquet = self._copied(), self._parquet()
        for place, expected in self.consumed.items():
            wanted = sorted(expected.items())
            assert copied.get(place, []) == wanted, _difference(
                "copied", place, copied.get(place, []), wanted
            )
            found = sorted(parquet.get(place, []))
            assert found == wanted, _difference("parquet", place, found, wanted)

    def _copied(self) -> dict[Place, list[tuple[int, bytes]]]:
        """By place, offsets and values in the order of the copy."""
        found: dict[Place, list[tuple[int, bytes]]] = {}
        for row in read_table(self.folder / "copied", columns=["topic", "key", "value"]).to_pylist():
            partition, offset = map(int, row["key"].split(b":"))
            found.setdefault((row["topic"], partition), []).append((offset, row["value"]))
        return found

    def _parquet(self) -> dict[Place, list[tuple[int, bytes]]]:
        """By place, offsets and values in the files that the sink has committed."""
        log = self.folder / "parquet" / "_spark_metadata"
        paths = {
            json.loads(line)["path"].removeprefix("file://")
            for file in log.iterdir()
            if not file.name.startswith(".")
            for line in file.read_text().splitlines()
            if line.startswith("{")
        }
        found: dict[Place, list[tuple[int, bytes]]] = {}
        for path in paths:
            for row in pq.ParquetFile(path).read().to_pylist():
                found.setdefault((row["topic"], row["partition"]), []).append((row["offset"], row["value"]))
        return found


def _lives(kills: int) -> Iterator[list[str]]:
    """Yield the steps of one driver after the other: four kills each. Each step in turn is the one that ends a driver.

    Those from the journal on come first. Two drivers come to every step, and four have a worker killed at each.
    """
    kinds = [*STEPS, "at random"]
    first = STEPS.index("journal written")
    for number in range(first, first + -(-kills // 4)):
        yield [kinds[(number + 2 * each) % len(kinds)] for each in (1, 2, 3, 4)]


def _difference(
    what: str, place: Place, found: list[tuple[int, bytes]], wanted: list[tuple[int, bytes]]
) -> str:
    twice = [offset for offset, count in Counter(offset for offset, _ in found).items() if count > 1]
    missing = sorted({offset for offset, _ in wanted} - {offset for offset, _ in found})
    more = sorted({offset for offset, _ in found} - {offset for offset, _ in wanted})
    return (
        f"{what} {place}: missing {missing[:10]}, twice {twice[:10]}, more {more[:10]}, or in another order"
    )


pytestmark = pytest.mark.spark

# Two drivers come to every step.
KILLS = 8
SOAK_KILLS = 200


def run_campaign(folder, kills, seed):
    with KafkaBroker(folder / "broker", BROKER_SETTINGS) as broker:
        campaign = Campaign(broker, folder, seed)
        campaign.run(kills)
    assert sum(campaign.kills.values()) == kills
    assert {kill.rpartition(",")[0] for kill in campaign.kills} == {*STEPS, "at random"}
    if kills > 8 * len(STEPS):
        for target in ("worker", "driver"):
            assert {f"{step}, {target}" for step in STEPS} <= campaign.kills.keys()
    assert all(len(rows) > _FEWEST_ROWS for rows in campaign.consumed.values())
    return campaign


def test_each_record_once_after_kills_at_every_step(tmp_path):
    run_campaign(tmp_path, KILLS, seed=7)


@pytest.mark.soak
def test_each_record_once_after_many_kills(tmp_path, capsys):
    seed = int(time.time())
    with capsys.disabled():
        print(f"\nseed {seed}")
        print(run_campaign(tmp_path, SOAK_KILLS, seed).kills)
