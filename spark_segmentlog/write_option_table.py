"""The table of write options, but for Kafka's topic-level keys, which `storage_core.config` lists."""

from __future__ import annotations

from storage_core.scan.option_table import OptionSpec

__all__ = ["WRITE_OPTIONS"]


def _option(name: str, kind: str, default: str, doc: str, *aliases: str) -> OptionSpec:
    return OptionSpec(name, aliases, kind, default, "batch", doc)


WRITE_OPTIONS: tuple[OptionSpec, ...] = (
    _option("path", "path", "", "Required. The log directory; it is made if it is not there.", "paths"),
    _option("topic", "topic", "", "The topic of every row, whatever the column `topic` says."),
    _option(
        "partitions",
        "count",
        "1",
        "How many partitions a new topic gets. One that is there keeps its own; with `brokerDirectory`, how many it has in "
        "the cluster, if some stand on other disks.",
    ),
    _option(
        "partitioner",
        "`default`, `roundRobin` or `random`",
        "default",
        "Where rows go whose column `partition` is null or missing: `default` by the hash of the key as Kafka's Java "
        "producer does, and without a key to one partition until a batch is full.",
    ),
    _option(
        "compression.type",
        "`none`, `gzip`, `snappy`, `lz4` or `zstd`",
        "none",
        "How batches are compressed; also Kafka's words for topics, `uncompressed` and `producer`.",
        "kafka.compression.type",
    ),
    _option("compression.level", "number", "", "The level of that codec."),
    _option("batch.size", "bytes", "131072", "The most that a batch takes before it is compressed."),
    _option(
        "maxDecompressedBatchBytes",
        "size",
        "64m",
        "The largest batch, before it is compressed, that the readers of these rows take. A row that makes a larger one is "
        "refused: raise this, `max.message.bytes`, and the option of the same name of each read.",
    ),
    _option(
        "flush",
        "`commit` or `none`",
        "commit",
        "Whether everything is on disk before the rows become visible. `none` leaves it to the system: quicker, and the "
        "rows are visible at once, but a power cut may take some of them. The directory is then left as by a running "
        "broker: whoever opens it next, other than such a job, recovers its logs first.",
    ),
    _option(
        "txnAppId",
        "text",
        "",
        "With `txnVersion`: who writes. A job whose version is not above the last one that this application "
        "committed here does nothing.",
    ),
    _option("txnVersion", "number", "", "With `txnAppId`: grows with each job."),
    _option(
        "topicIds", "JSON", "", 'Ids of new topics, as a cluster knows them: `{"topicA":"<22 characters>"}`.'
    ),
    _option(
        "brokerDirectory",
        "boolean",
        "false",
        "Whether to write into a directory that belongs to a (stopped) broker.",
    ),
    _option(
        "preserveOffsets",
        "boolean",
        "false",
        "Whether records get the offsets of the column `offset`, which must lie behind those that are there.",
    ),
    _option(
        "offsetsFrom",
        "paths",
        "",
        "With `preserveOffsets`: the directory that the rows were read from; where its logs start and end is "
        "restored, too.",
    ),
)
