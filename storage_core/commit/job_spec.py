"""One job that writes to a log directory, and the directory it writes to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from storage_core.commit_files.stage_names import require_job_id
from storage_core.commit_replay.replay import DEFAULT_THREADS
from storage_core.config import DEFAULT_TXN_RETENTION_MS
from storage_core.errors import OptionError
from storage_core.log_config import LogConfig

if TYPE_CHECKING:
    from storage_core.filesystem import FileSystem


# The commits file limits the length of a line.
_MAX_APP_ID_LENGTH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job that writes to a log directory. Spark's options are parsed into it, and tasks and the commit get it.

    Args:
        job_id: 32 hexadecimal digits, unique among all jobs; drawn unless given.
        mode: ``append``; or ``overwrite``: the log start offset of every partition of the targeted topics moves to the
            first of the job's rows.
        config: The configuration of all topics, or one for each topic.
        new_partitions: Topics that get new partitions, and how many partitions each of them then has.
        targeted_topics: Topics that the job writes to even if none of its rows goes there.
        txn_app_id: An application that numbers its jobs.
        txn_version: The application's number for this job. A number that is not above the last committed one counts
            as committed.
        query_id: The streaming query that the application is, if it has another name. No other query may use the name.
        is_stream: Whether the versions are the numbers of a query's micro-batches, of which only the last is repeated.
        compares_rows: Whether the rows of a repeated micro-batch must be those that were written.
        txn_retention_ms: How long the last version of an application is remembered at least.
        topic_ids: Ids for new topics, 22 characters. Existing topics must have the same id.
        broker_directory: Whether to write to a directory that belongs to a stopped broker.
        preserve_offsets: Whether the rows keep the offsets that they were staged with.
        restored_offsets: Log start and log end offset of the partitions that the rows come from.
        flush: Whether to flush everything before the rows become visible. If not, a power cut may lose some of them,
            and the directory has no clean-shutdown file: the next process to open it recovers its logs, unless that
            is another such job.
        threads: How many partitions to work on in parallel.
        lock_wait_seconds: How long a commit waits for another job to end.
    """

    job_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    mode: Literal["append", "overwrite"] = "append"
    config: LogConfig | Mapping[str, LogConfig] = field(default_factory=LogConfig)
    new_partitions: Mapping[str, int] = field(default_factory=dict)
    targeted_topics: tuple[str, ...] = ()
    txn_app_id: str | None = None
    txn_version: int | None = None
    query_id: str | None = None
    is_stream: bool = False
    compares_rows: bool = True
    txn_retention_ms: int = DEFAULT_TXN_RETENTION_MS
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    broker_directory: bool = False
    preserve_offsets: bool = False
    restored_offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    flush: bool = True
    threads: int = DEFAULT_THREADS
    lock_wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        require_job_id(self.job_id)
        if self.mode not in ("append", "overwrite"):
            raise OptionError(f"Expected the mode 'append' or 'overwrite', found {self.mode!r}.")
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise OptionError(
                "Expected both txnAppId and txnVersion, or neither, found one. A version only has a meaning for the "
                "application that assigned it."
            )
        if self.txn_app_id is not None:
            _require_app_id(self.txn_app_id)
        if self.query_id is not None and self.txn_app_id is None:
            raise OptionError(
                "Expected a txnAppId besides the id of a streaming query, found none. Set both."
            )
        if self.mode == "overwrite" and self.preserve_offsets:
            raise OptionError(
                "preserveOffsets does not go with mode overwrite, whose rows get the offsets after the existing ones. "
                "Use mode append, and an empty log directory."
            )
        if self.restored_offsets and not self.preserve_offsets:
            raise OptionError("Offsets are restored with preserveOffsets only. Set it, too.")
        for (topic, partition), (start, end) in self.restored_offsets.items():
            if not 0 <= start <= end:
                raise OptionError(
                    f"Expected {topic}-{partition} to start at or after offset 0 and to end at or after its start, "
                    f"found {start} and {end}."
                )
        if self.threads < 1:
            raise OptionError(f"Expected at least 1 thread, found {self.threads}.")

    def config_of(self, topic: str) -> LogConfig:
        """Return the configuration of a topic."""
        if isinstance(self.config, LogConfig):
            return self.config
        return self.config.get(topic) or LogConfig()


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job in its log directory, ``root``."""

    filesystem: FileSystem
    root: str
    spec: JobSpec

    def path(self, name: str) -> str:
        """Return the path of a file or directory in the root."""
        return f"{self.root}/{name}"


def _require_app_id(app_id: str) -> None:
    if not 0 < len(app_id) <= _MAX_APP_ID_LENGTH:
        raise OptionError(
            f"Expected a txnAppId of 1 to {_MAX_APP_ID_LENGTH} characters, found one of {len(app_id)}."
        )
    try:
        app_id.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"Expected text as txnAppId, found an unpaired surrogate in {app_id!r}.") from error
