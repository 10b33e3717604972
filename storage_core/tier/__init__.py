"""Tiered storage (KIP-405), shown as the log directories that it came from.

`TierFileSystem` is a view over any file system: where the directories of a tier lie, it shows partition directories with
Kafka's file names, so that every read works on a tier. Known are the layouts of Kafka's ``LocalTieredStorage`` and of
Aiven's plugin.
"""

from __future__ import annotations

from storage_core.tier.tier_file_system import TierFileSystem, open_file_system

__all__ = ["TierFileSystem", "open_file_system"]
