"""Jobs that write many rows: tasks stage them next to the partitions, and one commit publishes all or none."""

from storage_core.commit.job import CommitJob
from storage_core.commit.job_spec import JobSpec
from storage_core.commit.manifest import StagedManifest
from storage_core.commit.staging import StageWriter

__all__ = ["CommitJob", "JobSpec", "StageWriter", "StagedManifest"]
