"""Several processes share the partitions of a log directory, without a broker or a coordinator.

    python examples/share_partitions.py [number of processes]

They only agree on the list of members. Each process lists the directory, computes the assignment of the whole group as
Kafka's consumers would, and reads its own share.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from storage_core import FileSystem, parse_read_options, plan_scan, read_table
from storage_core.partitioning import RoundRobinAssignor, Subscription, TopicPartition

DATA = str(Path(__file__).resolve().parent / "data")


def partitions_by_topic() -> dict[str, list[int]]:
    """List the partitions in the directory. A broker's directory often holds only some of a topic's partitions."""
    plan = plan_scan(FileSystem(), parse_read_options({"path": DATA}))
    found: dict[str, list[int]] = {}
    for log in (each.log for each in plan.partitions):
        found.setdefault(log.topic, []).append(log.partition)
    return {topic: sorted(numbers) for topic, numbers in found.items()}


def share_of(member: str, members: list[str]) -> dict[str, list[int]]:
    """Assign a member its share, which is the same in every process."""
    found = partitions_by_topic()
    assignment = RoundRobinAssignor().assign(
        {topic: len(numbers) for topic, numbers in found.items()},
        {each: Subscription(found) for each in members},
    )
    share: dict[str, list[int]] = {}
    for topic, place in map(TopicPartition._make, assignment[member]):
        # The assignor counts from 0; the directory's numbers may have gaps.
        share.setdefault(topic, []).append(found[topic][place])
    return share


def read_share(member: str, members: list[str]) -> tuple[dict[str, list[int]], int]:
    """Read the share of a member; return its partitions and how many records they have."""
    share = share_of(member, members)
    if not share:
        return share, 0
    return share, read_table(DATA, assign=json.dumps(share), columns=["partition", "offset"]).num_rows


def main() -> None:
    """Start the members and compare what they read with a read of everything."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    members = [f"reader-{number}" for number in range(count)]
    total = 0
    # Processes that share nothing, as if on separate machines.
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as processes:
        for member, (share, records) in zip(
            members, processes.map(read_share, members, [members] * count), strict=True
        ):
            partitions = ", ".join(f"{topic}-{number}" for topic in share for number in share[topic])
            print(f"{member}  {records:>6,} records  {partitions or 'nothing'}")
            total += records
    everything = read_table(DATA, columns=["offset"]).num_rows
    print(f"{total:,} of {everything:,} records read, each once")


if __name__ == "__main__":
    main()
