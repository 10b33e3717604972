"""The tables of read and write options, which parsing, documentation and error messages share.

Kafka's topic-level keys, which writes take too, are in `storage_core.config`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable


_SHOWN_NAMES = 40


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """An option.

    Attributes:
        name: The documented name.
        aliases: Other names for the same option.
        kind: What its value looks like, for the documentation.
        default: The default as text; empty if there is none.
        applies_to: ``any`` read; or only to a ``batch``, or only to a ``stream``.
        doc: What it means, in one or two sentences.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    default: str
    applies_to: str
    doc: str


def _any(name: str, kind: str, default: str, *, aliases: tuple[str, ...] = (), doc: str) -> OptionSpec:
    return OptionSpec(name, aliases, kind, default, "any", doc)


def _batch(name: str, kind: str, default: str, *, doc: str) -> OptionSpec:
    return OptionSpec(name, (), kind, default, "batch", doc)


def _stream(name: str, kind: str, default: str, *, doc: str) -> OptionSpec:
    return OptionSpec(name, (), kind, default, "stream", doc)


# Each option has a line of values and its text, so that options compare by eye.
# fmt: off
READ_OPTIONS: tuple[OptionSpec, ...] = (
    _any("path", "paths", "", aliases=("paths",),
         doc="Required. One or more (a list, a glob as `/data/*/kafka-logs` or `/data/{a,b}`, or comma separated unless "
             "the whole text exists; `file:` URIs too): a Kafka log directory, a folder of them, or one partition "
             "directory. Globs have Hadoop's syntax, but a literal `*` is `[*]`, not `\\*`; they follow symbolic "
             "links. Copies of one partition (of one cluster and topic id) are read as one log: what the preferred copy lacks "
             "comes from the others."),
    _any("subscribe", "topics", "",
         doc="Topics to read, comma separated. Internal topics only if named here."),
    _any("subscribePattern", "Java regex", "",
         doc="Topics to read, by a pattern that is searched anywhere in the name. Never matches internal topics."),
    _any("assign", "JSON", "",
         doc='Partitions to read, as `{"topicA":[0,1]}`; those that do not exist are left out. Only one of `subscribe`, '
             "`subscribePattern` and `assign` may be given; with none, every topic but the internal ones."),
    _any("startingOffsets", "`earliest`, `latest` or JSON", "earliest",
         doc='Where to start: `earliest`, or `{"topicA":{"0":23,"1":-2},"topicB":"earliest"}` (-2 is earliest) naming '
             "exactly the partitions read. In a stream, `latest` (the default there; -1 in JSON), too; only a new query "
             "looks at it."),
    _batch("endingOffsets", "`latest` or JSON", "latest",
           doc='Where to stop, exclusive: `latest`, or `{"topicA":{"0":50,"1":-1}}` (-1 is latest).'),
    _any("startingOffsetsByTimestamp", "JSON", "",
         doc='A starting timestamp for each partition, `{"topicA":{"0":1000}}`; -1 is latest, -2 is earliest. Goes before '
             "`startingOffsets`."),
    _batch("endingOffsetsByTimestamp", "JSON", "",
           doc="An ending timestamp for each partition. Goes before `endingOffsets`."),
    _any("startingTimestamp", "timestamp", "",
         doc="Start each partition at its first record at or after this time: epoch milliseconds, ISO-8601, or relative "
             "(`-10 minutes`). Goes before the other starting options."),
    _batch("endingTimestamp", "timestamp", "",
           doc="Stop each partition at its first record at or after this time, or at its end if there is none. Goes before "
               "the other ending options."),
    _any("startingOffsetsByTimestampStrategy", "`error` or `latest`", "error",
         doc="What to do with a partition that has no record at or after the starting timestamp: fail, or read nothing."),
    _any("timeZone", "time zone", "UTC",
         doc="The zone of times that name none, as `Europe/Berlin`; a source is not told `spark.sql.session.timeZone`."),
    _any("isolationLevel", "`read_uncommitted` or `read_committed`", "read_uncommitted", aliases=("kafka.isolation.level",),
         doc="`read_committed` leaves out aborted transactions and stops before the first open one."),
    _any("failOnDataLoss", "boolean", "true",
         doc="Whether offsets that are asked for and do not exist (any more) are an error, or are skipped with a warning. In a "
             "stream, partitions that are absent, too; their offsets are kept in the checkpoint."),
    _any("minPartitions", "count", "",
         doc="Cut the offset ranges into at least about this many tasks."),
    _any("maxRecordsPerPartition", "count", "",
         doc="Cut the offset ranges so that no task has more offsets."),
    _any("maxBytesPerPartition", "size", "",
         doc="About how many bytes of log a task reads (default: at most 128 MiB, less if there are idle processors), as "
             "`64m` or plain bytes."),
    _any("endingAt", "`logEnd` or `highWatermark`", "logEnd",
         doc="What `latest` means: after the last whole batch, or the broker's last checkpointed high watermark. A stream's "
             "default is the high watermark where a broker's checkpoint has it, and the log end elsewhere."),
    _any("ignoreCheckpoints", "boolean", "false",
         doc="`true` reads every log from its first segment to its last whole batch, whatever the checkpoints of its log "
             "directory say of log starts, high watermarks and recovery points: for an old copy beside newer checkpoints."),
    _any("useIndexes", "boolean", "true",
         doc="`false` walks every batch header instead of using index files."),
    _any("maxDecompressedBatchBytes", "size", "64m",
         doc="The largest batch, decompressed, that is not an error. As decoded, a record counts as 32 bytes and a record "
             "header as 128."),
    _any("includeHeaders", "boolean", "false",
         doc="Adds the column `headers`."),
    _any("includeMetadata", "boolean", "false",
         doc="Adds the column `_metadata`."),
    _any("columns", "names", "",
         doc="The columns to read, in this order; comma separated or a JSON list."),
    _any("followSymlinks", "boolean", "false",
         doc="Whether partition directories that are symbolic links count."),
    _batch("filterPushdown", "boolean", "false",
           doc="Whether `df.filter(...)` reaches the reader. With `true`, one `load()` serves one filter."),
    _any("where", "condition", "",
         doc="A condition that rows must meet, as `offset >= 100 AND timestamp < '2026-01-01T00:00:00Z' AND key = 'k1'`: "
             "topic, partition, offset, timestamp, key and value compared with literals (`=`, `!=`, `<`, `<=`, `>`, `>=`, "
             "`<=>`, `IN`, `BETWEEN`, `IS NULL`, `LIKE 'prefix%'`), with `AND`, `OR`, `NOT`. Means what it means in Spark, "
             "but a time without a zone is in `timeZone`, not in the session's; besides, a timestamp may be relative "
             "(`'-10 minutes'`). Also used to skip data."),
    _any("maxTimestampDisorder", "interval", "",
         doc="Your promise that no record is earlier by more than this (`10 minutes`) than any record before it in its "
             "partition: then a read with `timestamp < ...` in its condition ends at the first record that is later by this "
             "much, and one with `timestamp >= ...` starts after a record that is earlier by this much."),
    _any("mode", "`FAILFAST`, `DROPMALFORMED` or `PERMISSIVE`", "FAILFAST",
         doc="What a damaged range of a log file does: fail the read, naming its bytes and offsets; continue at the next "
             "valid batch, with a warning; or also add a row that describes it."),
    _any("columnNameOfCorruptRecord", "column name", "_corrupt_record",
         doc="The last column with `mode=PERMISSIVE`: JSON with `file`, `topic`, `partition`, `startByte`, `endByte`, "
             "`startOffset`, `endOffset` (ends are exclusive, offsets bounds of what may be lost), `error` and `reason`. "
             "Null in the rows of records, unless a timestamp does not fit its column."),
    _batch("view", "name", "records",
           doc="What the rows are: `records`, or `batches`, `segments`, `partitions`, `index`, `transactions`, `producers`, "
               "`epochs`, `damage`, `group_offsets` or `files` ([Views](views.md))."),
    _batch("asOf", "timestamp", "",
           doc="With `view=group_offsets`: the offsets as they were at this time, instead of the latest."),
    _batch("exact", "boolean", "false",
           doc="With `view=segments` or `view=partitions`: walk every batch header, for what names and sizes of files do not "
               "tell."),
    _stream("maxOffsetsPerTrigger", "count", "",
            doc="The most offsets in a micro-batch, shared among the partitions in proportion to what each of them has; 0 "
                "reads nothing."),
    _stream("minOffsetsPerTrigger", "count", "",
            doc="How many new offsets a micro-batch waits for, but not longer than `maxTriggerDelay`."),
    _stream("maxTriggerDelay", "interval", "15m",
            doc="The longest wait for `minOffsetsPerTrigger`."),
    _stream("maxBytesPerTrigger", "size", "",
            doc="About the most bytes of log in a micro-batch, shared likewise. Each partition with new records takes part with "
                "at least one batch of records."),
)
WRITE_OPTIONS: tuple[OptionSpec, ...] = (
    _any("path", "path", "", aliases=("paths",),
         doc="Required. The log directory; it is created if it does not exist."),
    _any("topic", "topic", "",
         doc="The topic of every row, whatever the column `topic` says."),
    _any("partitions", "count", "1",
         doc="How many partitions a new topic gets. An existing topic keeps its own; with `brokerDirectory`, how many it "
             "has in the cluster, if some are on other disks."),
    _any("partitioner", "`default`, `roundRobin` or `random`", "default",
         doc="Where rows go whose column `partition` is null or missing: `default` by the hash of the key as Kafka's Java "
             "producer does, and without a key to one partition until a batch is full."),
    _any("compression.type", "`none`, `gzip`, `snappy`, `lz4` or `zstd`", "none", aliases=("kafka.compression.type",),
         doc="How batches are compressed; also Kafka's words for topics, `uncompressed` and `producer`."),
    _any("compression.level", "number", "",
         doc="The level of that codec."),
    _any("batch.size", "bytes", "131072",
         doc="The most that a batch takes before it is compressed."),
    _any("maxDecompressedBatchBytes", "size", "64m",
         doc="The largest batch, before it is compressed, that the readers of these rows take. A row that makes a larger "
             "one is refused: raise this, `max.message.bytes`, and the option of the same name of each read."),
    _any("flush", "`commit` or `none`", "commit",
         doc="Whether everything is on disk before the rows become visible. `none` leaves it to the system: quicker, and "
             "the rows are visible at once, but a power cut may lose some of them. The directory is then left as by a "
             "running broker: the next broker or program that opens it, other than such a job, recovers its logs first."),
    _any("txnAppId", "text", "",
         doc="With `txnVersion`: the application that writes. A job whose version is not above the last one that this "
             "application committed here does nothing."),
    _any("txnVersion", "number", "",
         doc="With `txnAppId`: grows with each job."),
    _any("txnRetention", "interval", "30 days",
         doc="How long at least the directory remembers the last `txnVersion` of an application, or the last batch of a "
             "stream, after that was committed. Jobs apply it now and then. A job or batch that is repeated later is written "
             "again."),
    _stream("repeatedBatch", "`compare` or `skip`", "compare",
            doc="What a stream does with its last batch, which Spark repeats after a failure: `compare` its rows with those "
                "that were written, in any order, and fail if they are others; or `skip` it whatever its rows are, because "
                "each run computes others, with `uuid()` for example."),
    _any("topicIds", "JSON", "",
         doc='Ids of new topics, as a cluster knows them: `{"topicA":"<22 characters>"}`.'),
    _any("brokerDirectory", "boolean", "false",
         doc="Whether to write into a directory that belongs to a (stopped) broker."),
    _any("preserveOffsets", "boolean", "false",
         doc="Whether records get the offsets of the column `offset`, which must be above the existing ones."),
    _any("offsetsFrom", "paths", "",
         doc="With `preserveOffsets`: the directory that the rows were read from; the start and end of its logs are "
             "restored, too."),
)
# fmt: on
# Spark's Kafka source ignores these in a batch read; a caller that does the same removes them first.
TRIGGER_OPTIONS = frozenset(spec.name for spec in READ_OPTIONS if spec.applies_to == "stream")


def option_key(name: str) -> str:
    """The form in which names are compared: in lower case, without underscores and dots."""
    return name.lower().replace("_", "").replace(".", "")


def names_by_key(options: Iterable[OptionSpec]) -> dict[str, str]:
    """The documented name of each option, by the key of each of its names."""
    return {option_key(name): spec.name for spec in options for name in (spec.name, *spec.aliases)}


_BY_KEY = {option_key(name): spec for spec in READ_OPTIONS for name in (spec.name, *spec.aliases)}


def find_option(name: str) -> OptionSpec:
    """Look up a read option by its name in any case, or in snake_case.

    Raises:
        OptionError: The option is unknown; the error suggests the nearest name.
    """
    spec = _BY_KEY.get(option_key(name))
    if spec is None:
        hint = nearest_hint(name, (known.name for known in READ_OPTIONS))
        raise OptionError(f"Unknown option '{name}'.{hint}")
    return spec


def nearest_hint(given: str, known: Iterable[str]) -> str:
    """A sentence that suggests the known name nearest to ``given``, or lists the known names.

    Begins with a blank, so that it can follow a sentence; empty if nothing is known.
    """
    names = {option_key(name): name for name in known}
    nearest = difflib.get_close_matches(option_key(given), names, n=1)
    if nearest:
        return f" Did you mean '{names[nearest[0]]}'?"
    if not names:
        return ""
    listed = sorted(names.values(), key=str.lower)
    more = len(listed) - _SHOWN_NAMES
    if more > 0:
        listed[_SHOWN_NAMES:] = [f"and {more} more"]
    return f" Known are: {', '.join(listed)}."
