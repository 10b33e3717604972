"""`segmentlog dump` prints what `kafka.tools.DumpLogSegments` prints: of every case, of damaged copies, of internal topics.

The digests by which `make test` compares the same without a JVM are written anew with
``python -m tests.interop.test_dump_beside_kafka``.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Self

import pytest

from tests.conformance.archives import case_names, unpack_case
from tests.dump.dumped import (
    DIGESTS,
    INDEX_FLAGS,
    LOG_FLAGS,
    LOG_SUFFIXES,
    Dumped,
    digests,
    dumpable,
    dumped,
    expected_digests,
    options_of,
)
from tests.interop.conftest import sample
from tests.interop.jars import QUICK_JVM, kafka_command
from tests.record.encoding import Batch, Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


_LENGTH = struct.Struct(">i")


class KafkaDump(NamedTuple):
    """What a run of the tool printed, and the exception that ended it, if one did."""

    stdout: bytes
    stderr: bytes
    failure: str


class KafkaDumps:
    """Runs the tool. Use as a context manager."""

    def __enter__(self) -> Self:
        options = ["-Xmx256m", *QUICK_JVM, "-Dlog4j2.level=OFF"]
        command = kafka_command("DumpLogSegmentsRuns", options=options)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, *arguments: object) -> KafkaDump:
        """Run the tool with these arguments, of which none may contain a tab or the end of a line."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write("\t".join(map(str, arguments)).encode() + b"\n")
        requests.flush()
        stdout, stderr, failure = (_answer(answers) for _ in range(3))
        return KafkaDump(stdout, stderr, failure.decode())


def _answer(answers: IO[bytes]) -> bytes:
    (length,) = _LENGTH.unpack(answers.read(_LENGTH.size))
    return answers.read(length)


_CASES = case_names()
_COPIES_PER_CASE, _SOAK_COPIES_PER_CASE = 10, 60
_LARGEST_BYTES = 200_000
_LENGTHS = (0, 13, 14, 20, 21, 30, 48, 49, 50, 60, 1 << 20, (1 << 31) - 1)


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaDumps]:
    with KafkaDumps() as dumps:
        yield dumps


def kafkas_dump(kafka: KafkaDumps, flags: str, path: Path) -> Dumped:
    stdout, stderr, failure = kafka.run(*flags.split(), "--files", path)
    return Dumped(stdout, stderr.decode(errors="replace").splitlines(), failure)


def assert_same(kafka: KafkaDumps, flags: str, path: Path, what: object = None) -> bytes:
    """Compare what both print, and return it."""
    expected, found = kafkas_dump(kafka, flags, path), dumped(path, options_of(flags))
    assert found.stdout == expected.stdout, (what, flags, path, found.failure, expected.failure)
    assert bool(found.failure) == bool(expected.failure), (what, flags, path, found.failure, expected.failure)
    # Of a snapshot that is damaged, the tool says it in other words.
    if not expected.failure and path.suffix != ".snapshot":
        assert found.stderr == expected.stderr, (what, flags, path)
    return expected.stdout


@pytest.mark.parametrize("case", _CASES)
def test_every_file_of_a_case_is_dumped_alike(kafka, tmp_path, case):
    logs, _ = unpack_case(case, tmp_path / case)
    found = digests(logs, case, lambda flags, path: assert_same(kafka, flags, path))
    assert found == expected_digests()[case]


@pytest.mark.parametrize("copies", sample((_COPIES_PER_CASE, _SOAK_COPIES_PER_CASE), 1))
@pytest.mark.parametrize("case", _CASES)
def test_damaged_copies_are_dumped_alike(kafka, tmp_path, case, copies):
    logs, _ = unpack_case(case, tmp_path / case)
    generator = random.Random(case)
    logs_of_case = [path for path in dumpable(logs) if _is_to_damage(path)]
    for number in range(copies):
        source = generator.choice(logs_of_case)
        folder = tmp_path / f"copy-{number}"
        folder.mkdir()
        for sibling in source.parent.glob(f"{source.name.partition('.')[0]}.*"):
            shutil.copy(sibling, folder / sibling.name)
        target = folder / source.name
        target.write_bytes(damage(generator, source.read_bytes()))
        for flags in LOG_FLAGS if target.name.endswith(LOG_SUFFIXES) else INDEX_FLAGS:
            assert_same(kafka, flags, target, number)
        index = target.with_suffix(".index")
        if target.suffix == ".log" and index.exists():
            assert_same(kafka, "", index, number)


# Pieces of which hostile texts are made: halves of surrogate pairs, overlong forms, cut sequences, plain text.
_FRAGMENTS = (
    *(
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xed\xa0",
        b"\xed",
        b"\xed\x9f\xbf",
        b"\xf0\x9f\x98\x80",
        b"\xf0\x9f\x98",
    ),
    *(
        b"\xf0\x9f",
        b"\xf0",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88",
        b"\xe2\x82\xac",
        b"\xe2\x82",
        b"\xe2",
        b"\xe0\x80\x80",
    ),
    *(b"\xc3\xa9", b"\xc3", b"\xc0\x80", b"\x80", b"\xff", b"a", b"\0", b"\n", b"\x1b[0m"),
)


@pytest.mark.parametrize("seed", sample(range(10), 3))
def test_bytes_that_are_no_utf8_are_dumped_alike(kafka, tmp_path, seed):
    generator = random.Random(seed)

    def hostile() -> bytes:
        return b"".join(generator.choices(_FRAGMENTS, k=generator.randrange(6)))

    records = [
        Record(delta, 0, hostile(), hostile(), ((hostile(), b""),) * generator.randrange(3))
        for delta in range(300)
    ]
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(Batch(tuple(records)).encode())
    for flags in LOG_FLAGS:
        assert_same(kafka, flags, path)


def _is_to_damage(path: Path) -> bool:
    has_index = path.suffix != ".timeindex" or path.with_suffix(".index").exists()
    return path.suffix != ".snapshot" and has_index and 20 < path.stat().st_size < _LARGEST_BYTES


def damage(generator: random.Random, content: bytes) -> bytes:
    """Bits flipped, bytes replaced, inserted, cut off: near the beginning, where headers are, more often than elsewhere."""
    data = bytearray(content)
    for _ in range(generator.choice((1, 1, 2, 3))):
        place = generator.randrange(min(len(data), generator.choice((80, 400, len(data)))))
        match generator.randrange(6):
            case 0 | 1:
                data[place] ^= 1 << generator.randrange(8)
            case 2:
                data[place] = generator.choice((0, 1, 2, 3, 127, 128, 237, 255))
            case 3:
                del data[max(place, 20) :]
            case 4:
                data[8:12] = generator.choice(_LENGTHS).to_bytes(4, "big")
            case _:
                data[place:place] = generator.randbytes(generator.randrange(1, 9))
    return bytes(data)


def write_digests() -> None:
    """Write the digests of all cases anew."""
    found = {}
    with KafkaDumps() as kafka, tempfile.TemporaryDirectory() as scratch:
        for case in _CASES:
            logs, _ = unpack_case(case, Path(scratch) / case)
            found[case] = digests(logs, case, lambda flags, path: kafkas_dump(kafka, flags, path).stdout)
    DIGESTS.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    write_digests()
