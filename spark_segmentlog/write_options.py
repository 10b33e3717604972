"""From Spark's options to what a batch write does, checked in one pure function.

Names are compared as those of a read are. What scripts bring along for Spark's Kafka sink is ignored, and so is
what only a read could use: ``INSERT INTO`` a temporary view passes the options that the view was made with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast

from spark_segmentlog.options import is_for_a_broker_or_catalog
from spark_segmentlog.write_option_table import WRITE_OPTIONS
from spark_segmentlog.write_option_values import (
    parse_config,
    parse_partitions,
    parse_path,
    parse_topic,
    parse_topic_ids,
    parse_transaction,
)
from storage_core.config import CONFIG_KEYS, INTERNAL_KEYS
from storage_core.errors import OptionError
from storage_core.scan.option_table import READ_OPTIONS, nearest_hint, option_key
from storage_core.scan.option_values import (
    DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES,
    parse_boolean,
    parse_choice,
    parse_max_batch_bytes,
    parse_paths,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from storage_core.log_config import LogConfig
    from storage_core.scan.option_table import OptionSpec

__all__ = ["WriteOptions", "ignored_write_options", "write_options"]

PartitionerName = Literal["default", "roundRobin", "random"]

_SERIALIZER: Final = (
    "Kafka option '{kind}.serializer' is not supported as {kind}s are serialized with ByteArraySerializer. "
    "Leave it out: columns of bytes and of text are taken as they are."
)
_REJECTED: Final = {
    "kafka.key.serializer": _SERIALIZER.format(kind="key"),
    "kafka.value.serializer": _SERIALIZER.format(kind="value"),
    "kafka.partitioner.class": "Kafka option 'partitioner.class' is not supported. Set the option 'partitioner' to "
    "default, roundRobin or random, or give each row its partition in the column 'partition'.",
}


def _names_by_key(options: Sequence[OptionSpec]) -> dict[str, str]:
    return {option_key(name): spec.name for spec in options for name in (spec.name, *spec.aliases)}


_OPTIONS_BY_KEY: Final = _names_by_key(WRITE_OPTIONS)
_CONFIG_BY_KEY: Final = {option_key(key.name): key.name for key in (*CONFIG_KEYS, *INTERNAL_KEYS)}
_READ_BY_KEY: Final = _names_by_key(READ_OPTIONS)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What to write, and how; see ``WRITE_OPTIONS`` for the meaning of each option.

    Attributes:
        path: As given, or what a ``file:`` URI says.
        config: The configuration of each topic that is written; Kafka's keys, ``batch.size`` among them.
        flush: Whether everything is on disk before the rows become visible.
        offsets_from: The paths of ``offsetsFrom``, as given.
        max_decompressed_batch_bytes: The largest batch, before it is compressed, that the readers of these rows take.
    """

    path: str
    config: LogConfig
    topic: str | None = None
    partitions: int | None = None
    partitioner: PartitionerName = "default"
    flush: bool = True
    txn_app_id: str | None = None
    txn_version: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    broker_directory: bool = False
    preserve_offsets: bool = False
    offsets_from: str | None = None
    max_decompressed_batch_bytes: int = DEFAULT_MAX_DECOMPRESSED_BATCH_BYTES

    @property
    def partition_count(self) -> int:
        """How many partitions a new topic gets."""
        return self.partitions or 1


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a batch write. Nothing is opened or looked up.

    Raises:
        OptionError: A name is unknown, a value is wrong, or options contradict each other.
    """
    for name in options:
        if name.lower() in _REJECTED:
            raise OptionError(_REJECTED[name.lower()])
    given, config = _sorted_out(options)
    preserve_offsets = parse_boolean("preserveOffsets", given.get("preserveOffsets", False))
    offsets_from = given.get("offsetsFrom")
    if offsets_from is not None and not preserve_offsets:
        raise OptionError("offsetsFrom goes with preserveOffsets=true. Set both, or neither.")
    txn_app_id, txn_version = parse_transaction(given)
    return WriteOptions(
        path=parse_path(given),
        config=parse_config(given, config),
        topic=parse_topic(given),
        partitions=parse_partitions(given),
        partitioner=cast(
            "PartitionerName",
            parse_choice(
                "partitioner", given.get("partitioner", "default"), ("default", "roundRobin", "random")
            ),
        ),
        flush=parse_choice("flush", given.get("flush", "commit"), ("commit", "none")) == "commit",
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        topic_ids=parse_topic_ids(given),
        broker_directory=parse_boolean("brokerDirectory", given.get("brokerDirectory", False)),
        preserve_offsets=preserve_offsets,
        offsets_from=offsets_from,
        max_decompressed_batch_bytes=parse_max_batch_bytes(given.get("maxDecompressedBatchBytes")),
    )


def ignored_write_options(options: Mapping[str, str]) -> tuple[str, ...]:
    """The names, never the values, of options that are accepted and have no effect."""
    names = [name for name in sorted(map(str.lower, options)) if _is_ignored(name)]
    return tuple(_READ_BY_KEY.get(option_key(name), name) for name in names)


def _is_ignored(name: str) -> bool:
    key = option_key(name)
    if key in _OPTIONS_BY_KEY or key in _CONFIG_BY_KEY:
        return False
    return is_for_a_broker_or_catalog(name.lower()) or key in _READ_BY_KEY


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Our own options and Kafka's keys, by documented name."""
    given: dict[str, str] = {}
    config: dict[str, str] = {}
    for name, value in options.items():
        if _is_ignored(name):
            continue
        key = option_key(name)
        if key in _OPTIONS_BY_KEY:
            known, target = _OPTIONS_BY_KEY[key], given
        elif key in _CONFIG_BY_KEY:
            known, target = _CONFIG_BY_KEY[key], config
        else:
            raise OptionError(f"Unknown option '{name}'.{nearest_hint(name, _known_names())}")
        text = _only_path(name, value) if known == "path" else value
        if target.setdefault(known, text).strip() != text.strip():
            raise OptionError(
                f"'{name}' and '{known}' are the same option, but they are given as {target[known]!r} and {text!r}. "
                "Give it once."
            )
    return given, config


def _known_names() -> list[str]:
    own = [spec.name for spec in WRITE_OPTIONS]
    return [*own, *(key.name for key in CONFIG_KEYS if key.name not in own)]


def _only_path(name: str, value: str) -> str:
    paths = parse_paths(name.lower(), value)
    if len(paths) > 1:
        raise OptionError(
            f"A write goes to one log directory, but {name} names {len(paths)}: {', '.join(paths)}."
        )
    return paths[0] if paths else ""
