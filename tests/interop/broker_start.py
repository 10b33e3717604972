"""What a broker logged during one start: the logs that it loaded, and its warnings and errors about them.

The absence of warnings proves nothing unless the broker logged that it loaded the log; so that is checked first.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interop.broker import KafkaBroker

_LINE = re.compile(r"\[[^]]+\] (?P<level>[A-Z]+) (?P<message>.*) \((?P<logger>[\w.$]+)\)")
_COMPLETED_LOAD = re.compile(
    r"Completed load of Log\(dir=\S+, topicId=(?P<topic_id>\S+), topic=(?P<topic>\S+), partition=(?P<partition>\d+), .*"
    r"logStartOffset=(?P<start>\d+), logEndOffset=(?P<end>\d+)\) with (?P<segments>\d+) segments"
)
_LOADED_ALL = re.compile(r"Loaded (\d+) logs in ")

# Loggers of the quorum and of the requests between broker and controller. On any start, and more so on a busy
# machine, they warn of requests that came too early or late. None of them concerns a log of a topic: the broker
# loads those before it registers.
_OF_THE_QUORUM = re.compile(
    r"\(("
    r"kafka\.raft\.|org\.apache\.kafka\.(raft|controller)\.|org\.apache\.kafka\.clients\.NetworkClient\b"
    r"|kafka\.server\.(Controller|NodeToController|BrokerLifecycleManager\b)"
    r")[\w.$]*\)$"
)

# Everything that a broker logs while it loads a log after a clean shutdown.
_CLEAN_LOADING = (
    r"Loading producer state till offset \d+",
    r"Reloading from producer snapshot and rebuilding producer state from offset \d+",
    r"Loading producer state from snapshot file .*",
    r"Producer state recovery took \d+ms for snapshot load and \d+ms for segment recovery from offset \d+",
    # A snapshot of an earlier log end, or one not above the log start: brokers leave such snapshots, too.
    r"Deleted producer state snapshot \S+",
)
# What a recovery logs in addition. "N recovered" counts processed segments, not damaged ones.
_UNCLEAN_LOADING = (
    *_CLEAN_LOADING,
    r"Recovering unflushed segment \d+\. \d+ recovered for \S+\.",
    r"Wrote producer snapshot at offset \d+ with \d+ producer ids in \d+ ms\.",
)
_LOADERS = ("LogLoader", "ProducerStateManager", "LocalLog", "UnifiedLog", "LogSegment", "SnapshotFile")


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log as the broker described it on loading."""

    topic_id: str
    log_start_offset: int
    log_end_offset: int
    segment_count: int


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """The broker's log since one start."""

    text: str

    def loaded(self) -> dict[tuple[str, int], LoadedLog]:
        """Return every loaded log, by topic and partition.

        Raises:
            AssertionError: The broker's own count of loaded logs differs.
        """
        return _loaded(self.text)

    @property
    def skipped_recovery(self) -> bool:
        """Whether the broker found the clean-shutdown marker."""
        return "since clean shutdown file was found" in self.text

    @property
    def recovered(self) -> bool:
        """Whether the broker found no clean-shutdown marker."""
        return "since no clean shutdown file was found" in self.text

    def unusual(self) -> list[str]:
        """Return all warnings and errors but those of the quorum."""
        return [
            line
            for line in self.text.splitlines()
            if re.match(r"\[[^]]+\] (WARN|ERROR|FATAL) ", line) and not _OF_THE_QUORUM.search(line)
        ]

    def complaints(self, topic: str, partition: int = 0) -> list[str]:
        """Return everything logged about loading a partition that an intact partition would not cause."""
        usual = re.compile("|".join(_CLEAN_LOADING if self.skipped_recovery else _UNCLEAN_LOADING))
        named = re.compile(rf"(?<![\w.-]){re.escape(topic)}-{partition}(?![\w-])")
        complaints = []
        for line in _lines_of_loading(self.text):
            if f"{topic}-{partition}" not in line or not named.search(line):
                continue
            found = _LINE.fullmatch(line)
            message = re.sub(r"^\[[^]]*\] ", "", found["message"]) if found else line
            if (
                found is None
                or found["level"] != "INFO"
                or not (usual.fullmatch(message) or _is_about_something_else(message, found["logger"]))
            ):
                complaints.append(line)
        return complaints

    def recovered_segments(self, topic: str, partition: int = 0) -> list[int]:
        """Return the base offsets of the segments of a partition that the broker recovered."""
        of_partition = f"partition={topic}-{partition}, "
        lines = (line for line in _lines_of_loading(self.text) if of_partition in line)
        found = (re.search(r"Recovering unflushed segment (\d+)\.", line) for line in lines)
        return [int(each[1]) for each in found if each is not None]


# Many tests look for a topic of their own in the same text.
@functools.lru_cache(maxsize=2)
def _loaded(text: str) -> dict[tuple[str, int], LoadedLog]:
    logs = {
        (found["topic"], int(found["partition"])): LoadedLog(
            found["topic_id"], int(found["start"]), int(found["end"]), int(found["segments"])
        )
        for found in _COMPLETED_LOAD.finditer(text)
    }
    counts = _LOADED_ALL.findall(text)
    assert [int(count) for count in counts] == [len(logs)], f"{len(logs)} logs, and the broker says {counts}"
    return logs


@functools.lru_cache(maxsize=2)
def _lines_of_loading(text: str) -> list[str]:
    """Return the start up to its end: what clients do afterwards is logged, too."""
    return text.partition("Kafka Server started")[0].splitlines()


def _is_about_something_else(message: str, logger: str) -> bool:
    return message.startswith("Completed load of ") or not logger.endswith((*_LOADERS, "LogManager"))


def start_and_watch(broker: KafkaBroker) -> BrokerStart:
    """Start a broker and return what it logs during the start."""
    before_bytes = broker.log_path.stat().st_size if broker.log_path.exists() else 0
    broker.start()
    with open(broker.log_path, "rb") as log:
        log.seek(before_bytes)
        return BrokerStart(log.read().decode(errors="replace"))
