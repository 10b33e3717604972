from __future__ import annotations

import pytest

from storage_core.commit_files.stage_names import StageId, data_suffix_of, job_of, job_prefix, stage_of
from storage_core.errors import OptionError

JOB = "0123456789abcdef0123456789abcdef"
STAGE = StageId(JOB, 7, 123456)


def test_names():
    assert STAGE.pack_name == f".segmentlog-stage-{JOB}-7-123456.pack"
    assert STAGE.manifest_name == f".segmentlog-stage-{JOB}-7-123456.manifest"
    assert STAGE.segment_base_name(3) == f".segmentlog-stage-{JOB}-7-123456-3"


@pytest.mark.parametrize(
    "ending", [".pack", ".manifest", ".manifest.tmp", "-0.log", "-12.index", "-3.timeindex"]
)
def test_the_job_of_a_staged_file_is_in_its_name(ending):
    name = f".segmentlog-stage-{JOB}-0-9{ending}"
    assert job_of(name) == JOB
    assert name.startswith(job_prefix(JOB))


@pytest.mark.parametrize(
    "name",
    [
        ".segmentlog-journal",
        ".segmentlog-commits",
        f".segmentlog-stage-{JOB}",
        f".segmentlog-stage-{JOB}-0-9",
        f".segmentlog-stage-{JOB}-0-9.log",
        f".segmentlog-stage-{JOB}-0-9-1.pack",
        f".segmentlog-stage-{JOB}-0-9-1.log.deleted",
        f".segmentlog-stage-{JOB}-00-9.pack",
        f".segmentlog-stage-{JOB[:-1]}-0-9.pack",
        f".segmentlog-stage-{JOB.upper()}-0-9.pack",
        f".segmentlog-stage-{JOB}-0-9.pack\n",
        f"x.segmentlog-stage-{JOB}-0-9.pack",
        f".segmentlog-stage-{JOB}-{'9' * 20}-9.pack",
    ],
)
def test_other_files_are_left_alone(name):
    assert job_of(name) is None


def test_the_attempt_of_a_file():
    assert stage_of(STAGE.base_name) == STAGE
    assert stage_of(STAGE.segment_base_name(0)) == STAGE
    assert stage_of(STAGE.pack_name) is None
    assert stage_of("t-0") is None


def test_the_suffix_of_the_file_with_the_batches():
    assert data_suffix_of(STAGE.base_name) == ".pack"
    assert data_suffix_of(STAGE.segment_base_name(0)) == ".log"


@pytest.mark.parametrize("job_id", ["", JOB[:-1], JOB.upper(), JOB + "\n", "../" + JOB[3:]])
def test_a_job_that_names_cannot_be_made_of(job_id):
    with pytest.raises(OptionError, match="32 lower-case hexadecimal digits"):
        StageId(job_id, 0, 0)


@pytest.mark.parametrize(("task", "attempt"), [(-1, 0), (0, -1), (0, 1 << 63)])
def test_numbers_that_names_cannot_be_made_of(task, attempt):
    with pytest.raises(OptionError, match="from 0 to"):
        StageId(JOB, task, attempt)


def test_no_other_job_has_the_prefix():
    assert not StageId("0" * 32, 1, 1).pack_name.startswith(job_prefix("0" * 31 + "1"))
