"""What Kafka's own `kafka.tools.DumpLogSegments` prints, for many files from one JVM."""

from __future__ import annotations

import struct
import subprocess
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from tests.interop.jars import QUICK_JVM, kafka_command

if TYPE_CHECKING:
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
