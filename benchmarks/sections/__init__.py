"""The sections of the benchmark, by the name they have on the command line.

Each section is a module with ``run(settings) -> SectionResult``; it is imported when it is run.
"""

from __future__ import annotations

import importlib

from benchmarks.results import SectionResult
from benchmarks.settings import Settings

__all__ = ["SECTION_NAMES", "run_section"]

# Name -> module, and what its run() is called with besides the settings.
_SECTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "decode": ("decode", {}),
    "legacy": ("legacy", {}),
    "conditions": ("conditions", {}),
    "spark-local1": ("spark", {"master": "local[1]"}),
    "spark-local2": ("spark", {"master": "local[2]"}),
    "threads": ("threads", {}),
    "ranges": ("ranges", {}),
    "planning": ("planning", {}),
    "start": ("start", {}),
    "partitions": ("partitions", {}),
    "values": ("values", {}),
    "values-spark": ("values_spark", {}),
    "views": ("views", {}),
    "inventory": ("inventory", {}),
    "verify": ("verify", {}),
    "dump": ("dump", {}),
    "memory": ("memory", {}),
    "append": ("append", {}),
    "write": ("write", {}),
    "streaming": ("streaming", {}),
    "recovery": ("recovery", {}),
    "clean": ("clean", {}),
    "retention": ("retention", {}),
    "group_commit": ("group_commit", {}),
    "many_logs": ("many_logs", {}),
    "stores": ("stores", {}),
    "earlier": ("earlier", {}),
}

SECTION_NAMES = tuple(_SECTIONS)


def run_section(name: str, settings: Settings) -> SectionResult:
    """Run one section to its end."""
    module_name, arguments = _SECTIONS[name]
    module = importlib.import_module(f"benchmarks.sections.{module_name}")
    result: SectionResult = module.run(settings, **arguments)
    return result
