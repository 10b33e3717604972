"""The files that a commit leaves in a log directory: the journal, the commits file and the staged files.

Brokers ignore all of them. Kafka's own small files are in `storage_core.checkpoint`.
"""

from __future__ import annotations

__all__: list[str] = []
