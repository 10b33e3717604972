"""What a job says of itself: which rows it writes and where, and how they become visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from storage_core.checkpoint.commits_file import JOB_ID
from storage_core.errors import OptionError
from storage_core.log_config import LogConfig
from storage_core.publishing.replay import DEFAULT_THREADS

__all__ = ["JobSettings"]

# The line of a job that tells of it has to stay one that is read.
_MAX_APP_ID_LENGTH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One job that writes to a log directory.

    Args:
        job_id: 32 hexadecimal digits that no other job has.
        mode: ``append``, or ``overwrite``: the log start of every partition of the targeted topics moves to where
            the job's rows begin.
        config: Of all topics, or by topic.
        new_partitions: Topics of which partitions are made that do not exist, and how many each has then.
        targeted_topics: Topics that are written to although no row may go there.
        txn_app_id: An application that numbers its jobs.
        txn_version: The number of this one. One that is not above the last committed is taken as done.
        topic_ids: The ids of topics that are made, 22 characters; those of others must agree.
        broker_directory: Whether a directory may be written to that belongs to a broker, which is stopped.
        preserve_offsets: Whether the rows keep the offsets that they were staged with.
        restored_offsets: Log start and log end of the partitions that the rows come from.
        flush: Whether everything is on the disk before the rows are visible. False: a power cut may take some of them,
            and the directory is left without the marker of a clean shutdown. Whoever opens it next recovers its logs,
            but for another such job.
        threads: How many partitions are worked on at a time.
        lock_wait_seconds: How long a commit waits for another job to end.
    """

    job_id: str
    mode: Literal["append", "overwrite"] = "append"
    config: LogConfig | Mapping[str, LogConfig] = field(default_factory=LogConfig)
    new_partitions: Mapping[str, int] = field(default_factory=dict)
    targeted_topics: tuple[str, ...] = ()
    txn_app_id: str | None = None
    txn_version: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    broker_directory: bool = False
    preserve_offsets: bool = False
    restored_offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    flush: bool = True
    threads: int = DEFAULT_THREADS
    lock_wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not JOB_ID.fullmatch(self.job_id):
            raise OptionError(
                f"Expected 32 lower-case hexadecimal digits as the id of a job, found {self.job_id!r}."
            )
        if self.mode not in ("append", "overwrite"):
            raise OptionError(f"Expected the mode 'append' or 'overwrite', found {self.mode!r}.")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise OptionError(
                "Expected both txnAppId and txnVersion, or none of them, found one. A number counts for the "
                "application that gave it."
            )
        if self.txn_app_id is not None:
            _check_app_id(self.txn_app_id)
        if self.restored_offsets and not self.preserve_offsets:
            raise OptionError("Expected offsets to be restored with preserveOffsets only. Set it, too.")
        for (topic, partition), (start, end) in self.restored_offsets.items():
            if not 0 <= start <= end:
                raise OptionError(
                    f"Expected {topic}-{partition} to start at offset 0 or behind it and to end there or behind it, "
                    f"found {start} and {end}."
                )
        if self.threads < 1:
            raise OptionError(f"Expected at least 1 thread, found {self.threads}.")

    def config_of(self, topic: str) -> LogConfig:
        """The configuration of a topic."""
        if isinstance(self.config, LogConfig):
            return self.config
        return self.config.get(topic) or LogConfig()


def _check_app_id(app_id: str) -> None:
    if not 0 < len(app_id) <= _MAX_APP_ID_LENGTH:
        raise OptionError(
            f"Expected a name of 1 to {_MAX_APP_ID_LENGTH} characters as txnAppId, found one of {len(app_id)}."
        )
    try:
        app_id.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"Expected text as txnAppId, found half a character in {app_id!r}.") from error
