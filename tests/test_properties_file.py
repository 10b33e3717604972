"""``conf/segmentlog.properties`` is what the table of configuration keys says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.properties_file import properties_text

ROOT = Path(__file__).parent.parent
PROPERTIES = ROOT / "conf" / "segmentlog.properties"


def test_properties_file_is_the_generated_one():
    assert PROPERTIES.read_text(encoding="utf-8") == properties_text(), (
        "run: python -m tests.properties_file > conf/segmentlog.properties"
    )


def test_module_prints_the_properties_file():
    printed = subprocess.run(
        [sys.executable, "-m", "tests.properties_file"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == properties_text()
    assert printed.stderr == ""
