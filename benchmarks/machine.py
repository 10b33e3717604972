"""The circumstances of a run: machine, versions, commit, load."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from typing import Any

from benchmarks.settings import CHECKOUT
from tests.interop.jars import KAFKA_VERSION

_PACKAGES = (
    "pyspark", "pyarrow", "numpy", "crc32c", "aiokafka", "cramjam", "kafka-python", "confluent-kafka"
)  # fmt: skip


def describe_circumstances() -> dict[str, Any]:
    """Machine, versions, commit, date and load, as plain values."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java_version(),
        "broker": f"Apache Kafka {KAFKA_VERSION}",
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "load_average": os.getloadavg()[0],
    }


def _commit() -> str:
    head = _output(["git", "rev-parse", "--short=12", "HEAD"])
    if not head:
        return "unknown"
    is_changed = bool(_output(["git", "status", "--porcelain", "--untracked-files=no"]))
    return f"{head} with changes" if is_changed else head


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _java_version() -> str:
    # java writes its version to stderr.
    lines = _output(["java", "-version"]).splitlines()
    return lines[0] if lines else "unknown"


def _package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _output(command: list[str]) -> str:
    try:
        result = subprocess.run(
            command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.strip()
