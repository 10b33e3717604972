"""Writing many rows at once: tasks stage them beside the partitions, then one commit publishes all of them or none."""
