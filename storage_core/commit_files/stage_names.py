"""The names of staged files: what a job's tasks write to a log directory's root before the commit.

    .segmentlog-stage-<job>-<task>-<attempt>.pack         batches of many partitions, back to back
    .segmentlog-stage-<job>-<task>-<attempt>-<n>.log      a segment of one partition, with its .index and .timeindex
    .segmentlog-stage-<job>-<task>-<attempt>.manifest     the content of the attempt's other files

Brokers ignore files with such names. A manifest may have the additional suffix ``.tmp``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from storage_core.commit_files.commits_file import JOB_ID, OWN_PREFIX
from storage_core.errors import OptionError

STAGE_PREFIX: Final = f"{OWN_PREFIX}stage-"
_QUERY_DIGITS: Final = 16
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,18})"
_STAGE: Final = (
    rf"{re.escape(STAGE_PREFIX)}(?P<job>[0-9a-f]{{32}})-(?P<task>{_NUMBER})-(?P<attempt>{_NUMBER})"
)
STAGED_BASE_NAME: Final = re.compile(rf"{_STAGE}(?P<number>-{_NUMBER})?")
_FILE_NAME: Final = re.compile(
    rf"{_STAGE}(?:(?P<whole>\.pack|\.manifest|\.manifest\.tmp)|-(?P<number>{_NUMBER})\.(?:log|index|timeindex))"
)


@dataclass(frozen=True, slots=True)
class StageId:
    """One task attempt of a job.

    Args:
        attempt: A number that no other attempt at this task has.

    Raises:
        OptionError: A value does not fit a file name.
    """

    job_id: str
    task: int
    attempt: int

    def __post_init__(self) -> None:
        require_job_id(self.job_id)
        for name, number in (("task", self.task), ("attempt", self.attempt)):
            if not 0 <= number < 1 << 63:
                raise OptionError(f"Expected a number from 0 to 2^63 - 1 as {name}, found {number}.")

    @property
    def base_name(self) -> str:
        """The common prefix of the attempt's files, and the name of its pack file without suffix."""
        return f"{STAGE_PREFIX}{self.job_id}-{self.task}-{self.attempt}"

    @property
    def pack_name(self) -> str:
        """The pack file's name."""
        return self.base_name + ".pack"

    @property
    def manifest_name(self) -> str:
        """The manifest's name."""
        return self.base_name + ".manifest"

    def segment_base_name(self, number: int) -> str:
        """Return the name of a staged segment without suffix."""
        return f"{self.base_name}-{number}"


def require_job_id(job_id: str) -> None:
    """Refuse a job id that is not 32 hexadecimal digits.

    Raises:
        OptionError: It is something else.
    """
    if not JOB_ID.fullmatch(job_id):
        raise OptionError(f"Expected 32 lower-case hexadecimal digits as the id of a job, found {job_id!r}.")


def job_prefix(job_id: str) -> str:
    """Return the prefix that the names of a job's staged files share with no other job's."""
    return f"{STAGE_PREFIX}{job_id}-"


def job_id_in_query(query_id: str, job_id: str) -> str:
    """Return the id of a job that is a micro-batch of a streaming query; all of its jobs have the first half in common."""
    return hashlib.sha256(query_id.encode()).hexdigest()[:_QUERY_DIGITS] + job_id[_QUERY_DIGITS:]


def is_of_same_query(job_id: str, other: str) -> bool:
    """Return True if two jobs are micro-batches of one query. The ids of other jobs are random."""
    return job_id[:_QUERY_DIGITS] == other[:_QUERY_DIGITS]


def job_of(file_name: str) -> str | None:
    """Return the id of the job that staged a file.

    Returns:
        None for other files.
    """
    match = _FILE_NAME.fullmatch(file_name)
    return match["job"] if match else None


def stage_of(base_name: str) -> StageId | None:
    """Return the task attempt that a staged file belongs to, given its name without suffix.

    Returns:
        None for other names.
    """
    match = STAGED_BASE_NAME.fullmatch(base_name)
    return StageId(match["job"], int(match["task"]), int(match["attempt"])) if match else None


def data_suffix_of(base_name: str) -> str:
    """Return the suffix of the file that holds the batches: ``.log`` if a segment number follows the attempt."""
    match = STAGED_BASE_NAME.fullmatch(base_name)
    return ".log" if match and match["number"] else ".pack"
