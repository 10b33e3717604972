"""Arbitrary small edits of a log, shrunk by hypothesis when they fail."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.damage.campaign import Case
from tests.damage.mutations import Mutation
from tests.damage.reads import Read
from tests.damage.test_every_byte import FORMATS, small_log
from tests.examples import examples

MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
LOGS = {name: small_log(name) for name in FORMATS}


@st.composite
def edits(draw, files):
    """Replace a range of a file by fewer or more bytes, or by a piece of another file."""
    path = draw(st.sampled_from(sorted(files)))
    size = len(files[path])
    start = draw(st.integers(0, size))
    end = min(size, start + draw(st.sampled_from([0, 0, 1, 2, 4, 8, 61]) | st.integers(0, size)))
    if draw(st.booleans()):
        new = draw(
            st.binary(max_size=12) | st.sampled_from([bytes(end - start), b"\x7f\xff\xff\xff", b"\xff" * 8])
        )
    else:
        other = files[draw(st.sampled_from(sorted(files)))]
        first = draw(st.integers(0, len(other)))
        new = other[first : first + draw(st.integers(0, 150))]
    return path, start, end, new


def mutation_of(path, start, end, new):
    def apply(files):
        files[path] = files[path][:start] + new + files[path][end:]

    return Mutation("an edit", (path,), f"{path}: bytes {start} to {end} become {new.hex()}", apply)


@pytest.mark.parametrize("name", FORMATS)
@examples(60)
@given(data=st.data())
def test_any_few_edits(campaign, name, data):
    log = LOGS[name]
    files = {path: content for path, content in log.files.items() if path.startswith("events-0/0")}
    mutations = [mutation_of(*edit) for edit in data.draw(st.lists(edits(files), min_size=1, max_size=3))]
    read = dataclasses.replace(
        Read(),
        mode=data.draw(st.sampled_from(MODES)),
        committed=data.draw(st.booleans()),
        others=(("use_indexes", data.draw(st.booleans())),),
    )
    case = Case(log, 0, mutations, read)
    note(case.text())
    assert campaign.run(case).problems == []
