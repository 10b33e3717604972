"""The text of ``conf/segmentlog.properties``, generated from `storage_core.config`.

To regenerate it::

python -m tests.properties_file > conf/segmentlog.properties
"""

from __future__ import annotations

import sys

from storage_core.config import CONFIG_GROUPS, ConfigValue

_HEADER = """\
# Kafka's topic-level configuration keys, one of a producer and one of a broker, with their defaults (Kafka 4.1.0).
# Generated: python -m tests.properties_file > conf/segmentlog.properties
"""


def properties_text() -> str:
    """Return the text of ``conf/segmentlog.properties``."""
    lines = [_HEADER]
    for title, keys in CONFIG_GROUPS:
        lines.append(f"############ {title} ############\n")
        for key in keys:
            lines.append(f"# {key.doc} ({key.kind.value}: {key.range_text})")
            lines.append(f"{key.name}={_value_text(key.default)}\n")
    return "\n".join(lines)


def _value_text(value: ConfigValue | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.stdout.write(properties_text())
