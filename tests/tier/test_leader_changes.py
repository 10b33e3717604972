"""Any sequence of leaders that upload segments of their own: what is read is the log of the last one."""

from __future__ import annotations

import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.filesystem import FileSystem
from storage_core.tier import TierFileSystem
from tests.examples import examples
from tests.scan.conftest import batch, record
from tests.tier.conftest import values_of
from tests.tier.uploads import TIME_MS, Upload, put_aiven, put_local, upload

RECORDS = 5


class Leaders:
    """A partition whose leaders change, each with the batches and the segments of its own log."""

    def __init__(self, chance, put):
        self._chance = chance
        self._put = put
        self._uploads = 0
        # By batch, the epoch that wrote it.
        self.batches = []
        self.epochs = []
        self._uploaded = set()

    @property
    def end(self):
        return len(self.batches) * RECORDS

    def change(self, *, is_last):
        """Begin with another leader, perhaps without the last records of the one before, and upload the rest."""
        if self.batches and self._chance.random() < 0.5:
            del self.batches[self._chance.randrange(len(self.batches)) :]
        epoch = self.epochs[-1][0] + self._chance.randint(1, 3) if self.epochs else 0
        self.epochs = [each for each in self.epochs if each[1] < self.end]
        self.epochs.append((epoch, self.end))
        self.batches += [epoch] * self._chance.randint(1, 12)
        bases = sorted({0, *self._chance.sample(range(len(self.batches)), len(self.batches) // 3)})
        segments = list(zip(bases, [*bases[1:], len(self.batches)], strict=True))
        # From the segment on that holds the first record which is not uploaded.
        missing = next(
            (at for at, each in enumerate(self.batches) if (at, each) not in self._uploaded),
            len(self.batches),
        )
        left = [(first, end) for first, end in segments if end > missing]
        for first, end in left if is_last else left[: self._chance.randint(0, len(left))]:
            self._upload(first, end)
            self._uploaded |= {(at, self.batches[at]) for at in range(first, end)}

    def _upload(self, first, end):
        log = b"".join(
            batch(
                at * RECORDS,
                [
                    record(delta, delta, None, value(self.batches[at], at * RECORDS + delta))
                    for delta in range(RECORDS)
                ],
                last_offset_delta=RECORDS - 1,
                timestamps_ms=(TIME_MS, TIME_MS + RECORDS - 1),
                leader_epoch=self.batches[at],
            )
            for at in range(first, end)
        )
        self._uploads += 1
        epochs = tuple(each for each in self.epochs if each[1] < end * RECORDS)
        files = {"log": log, "index": b"", "timeindex": b""}
        self._put(
            Upload(
                first * RECORDS,
                end * RECORDS,
                files,
                epochs,
                TIME_MS + self._uploads,
                f"{self._uploads:022d}",
            )
        )


def value(epoch, offset):
    return b"%d.%d" % (epoch, offset)


@pytest.mark.parametrize("put", [put_aiven, put_local])
@examples(120)
@given(seed=st.integers(0, 2**32))
def test_the_log_of_the_last_leader_is_read(tmp_path_factory, put, seed):
    chance = random.Random(seed)
    root = tmp_path_factory.mktemp("tier")
    leaders = Leaders(chance, lambda each: put(root, each))
    count = chance.randint(1, 5)
    for number in range(count):
        leaders.change(is_last=number == count - 1)
    expected = [(offset, value(leaders.batches[offset // RECORDS], offset)) for offset in range(leaders.end)]
    assert values_of(root) == expected
    shutil.rmtree(root)


@examples(100)
@given(
    reads=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1500)), max_size=8),
    kind=st.sampled_from(["plain", "zstd", "aes", "zstd-aes"]),
    chunk_bytes=st.sampled_from([1, 7, 100, 1000, 5000]),
)
def test_any_range_of_a_log_is_read(tmp_path_factory, public_key, key_file, reads, kind, chunk_bytes):
    root = tmp_path_factory.mktemp("tier")
    each = upload(0, 50)
    put_aiven(root, each, kind, chunk_bytes=chunk_bytes, public_key=public_key)
    filesystem = TierFileSystem(FileSystem(), key_file)
    filesystem.list_directory(str(root))
    with filesystem.open(f"{root}/orders-0/{0:020d}.log") as opened:
        for position, size in reads:
            assert opened.read_at(size, position) == each.files["log"][position : position + size]
            buffer = bytearray(size)
            read = opened.read_into(memoryview(buffer), position)
            assert buffer[:read] == each.files["log"][position : position + size]
    shutil.rmtree(root)
