"""Writing many rows at once: tasks stage them beside the partitions, then one commit publishes all of them or none."""

from storage_core.commit.job import CommitJob, CommitOutcome
from storage_core.commit.manifest import JobSettings, StagedManifest
from storage_core.commit.routing import RoutedRows
from storage_core.commit.staging import StageWriter

__all__ = ["CommitJob", "CommitOutcome", "JobSettings", "RoutedRows", "StageWriter", "StagedManifest"]
