"""The text that ``kafka-dump-log.sh`` makes of internal records, beside that of our decoders."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from storage_core.internal_records.internal_records import MESSAGE_DECODERS
from tests.interop.jars import QUICK_JVM, kafka_command

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_TIMEOUT_S = 300
# Names in texts that are no JSON may hold line ends.
_LINE = re.compile(r"\n(?=\| offset: \d+ |baseOffset: |Dumping |\Z)")
_RECORD = re.compile(r"\| offset: (\d+) .*? headerKeys: \[\](.*)", re.DOTALL)


def printed_by_the_tool(decoder: str, log_file: Path) -> dict[int, str]:
    """By offset, what stands behind the metadata of each record of a log file, of control records too."""
    command = kafka_command(
        "kafka.tools.DumpLogSegments",
        *(f"--{decoder}-decoder", "--files", str(log_file)),
        options=[*QUICK_JVM, "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"],
    )
    result = subprocess.run(
        command, capture_output=True, check=True, timeout=_TIMEOUT_S, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    printed = (_RECORD.fullmatch(line) for line in _LINE.split(result.stdout.decode()))
    return {int(found[1]): found[2] for found in printed if found is not None}


def printed_by_ours(
    decoder: str, records: Iterable[tuple[int, bytes | None, bytes | None]]
) -> dict[int, str]:
    """Return the same of our decoder, for records of offset, key and value."""
    texts = {}
    for offset, key, value in records:
        key_text, value_text = MESSAGE_DECODERS[decoder](key, value, offset)
        texts[offset] = "".join(
            f" {name}: {text}"
            for name, text in (("key", key_text), ("payload", value_text))
            if text is not None
        )
    return texts
