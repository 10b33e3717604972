"""The command `segmentlog`: examines and repairs directories of Kafka log segments."""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process, and end the process with its status."""
    try:
        from storage_core.cli.main import run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except ModuleNotFoundError as error:
        if error.name not in {"click", "jinja2", "markupsafe", "rich"}:
            raise
        sys.exit(
            f"segmentlog: the command needs {error.name}, which is not installed: "
            "pip install 'spark-segmentlog[cli]'"
        )
