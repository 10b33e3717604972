from __future__ import annotations

import dataclasses

from storage_core.compaction import CleanStatistics


def test_statistics_add_up_field_by_field():
    fields = [field.name for field in dataclasses.fields(CleanStatistics)]
    first = CleanStatistics(**{name: 10**number for number, name in enumerate(fields)})
    second = CleanStatistics(**{name: 2 * 10**number for number, name in enumerate(fields)})
    assert first + second == CleanStatistics(**{name: 3 * 10**number for number, name in enumerate(fields)})
    assert CleanStatistics() + first == first
