"""What a task says of a machine that lacks the package, one of its dependencies, or the directory."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import socket
import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_segmentlog import SegmentLogDataSource, workers
from storage_core.errors import DataLossError, LogDirectoryError
from tests.spark.writers import batch, sent, stage, writer_of

HERE = socket.gethostname()
ONE_ROW = [batch(value=pa.array([b"v"]))]
# As Spark's worker does: what comes from the driver is restored first.
WORKER = """
import pickle, sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
pickle.load(sys.stdin.buffer)
"""


def reader_of(path, **options):
    source = SegmentLogDataSource(CaseInsensitiveDict({"path": str(path), **options}))
    return source.reader(source.schema())


@pytest.fixture(params=["reader", "writer"])
def made(request, new_logs, records_of, tmp_path):
    if request.param == "writer":
        return writer_of(tmp_path / "written", "value", topic="t")
    new_logs.write("a", 0, records_of(3))
    return reader_of(new_logs.path)


@pytest.mark.cases(2, 5)
@pytest.mark.parametrize("missing", ["spark_segmentlog", "storage_core", "numpy", "pyarrow", "crc32c"])
def test_a_worker_without_a_package_says_which_one_where_and_how_to_send_it(made, missing):
    done = subprocess.run(
        [sys.executable, "-c", WORKER.format(missing=missing)],
        input=cloudpickle.dumps(made),
        capture_output=True,
        check=False,
    )
    lines = done.stderr.decode().splitlines()
    assert lines[-1] == (
        f"ImportError: A worker on {HERE} cannot import segmentlog: No module named '{missing}'. Its Python is "
        f"{sys.executable}. Install spark-segmentlog in it, or send a packed environment (--archives) or segmentlog's "
        "zip (--py-files; numpy, pyarrow and crc32c must be installed). docs/deploy.md has the commands."
    )
    assert "During handling" not in done.stderr.decode()


@pytest.fixture
def moved(monkeypatch):
    """Let what is sent from now on arrive on another machine."""
    return lambda: monkeypatch.setattr(socket, "gethostname", lambda: "worker-2")


@pytest.mark.parametrize(("is_mount_point", "found"), [(False, "none"), (True, "an empty one")])
def test_a_task_on_another_host_without_the_logs_speaks_of_shared_storage(
    new_logs, records_of, moved, is_mount_point, found
):
    new_logs.write("a", 0, records_of(3))
    reader = reader_of(new_logs.path)
    (partition,) = reader.partitions()
    moved()
    assert sum(rows.num_rows for rows in sent(reader).read(partition)) == 3
    os.rename(new_logs.path, f"{new_logs.path}.gone")
    if is_mount_point:
        os.mkdir(new_logs.path)
    with pytest.raises(
        LogDirectoryError, match=f"on worker-2, as on {HERE}, where .* found {found}. .* need shared storage"
    ):
        list(sent(reader).read(partition))


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_on_another_host_a_deleted_partition_is_data_loss(
    new_logs, records_of, moved, caplog, fail_on_data_loss
):
    for topic in ("a", "b"):
        new_logs.write(topic, 0, records_of(3))
    reader = reader_of(new_logs.path, failOnDataLoss=str(fail_on_data_loss))
    partitions = reader.partitions()
    shutil.rmtree(os.path.join(new_logs.path, "a-0"))
    moved()
    here = sent(reader)
    if fail_on_data_loss:
        with pytest.raises(DataLossError, match="Set failOnDataLoss to false"):
            [list(here.read(partition)) for partition in partitions]
    else:
        assert sum(rows.num_rows for partition in partitions for rows in here.read(partition)) == 3
        assert "because failOnDataLoss is false" in caplog.text


def test_a_task_on_another_host_without_the_root_speaks_of_shared_storage(root, moved):
    writer = writer_of(root, "value", topic="t")
    moved()
    for name in os.listdir(root):
        os.unlink(os.path.join(root, name))
    os.rmdir(root)
    with pytest.raises(LogDirectoryError, match=f"on worker-2, as on {HERE}, where .* need shared storage"):
        stage(writer, ONE_ROW)


def test_a_commit_whose_rows_stay_on_another_host_speaks_of_shared_storage(root, monkeypatch):
    writer = writer_of(root, "value", topic="t")
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "worker-2")
        message = stage(writer, ONE_ROW)
    os.unlink(os.path.join(root, message.manifest.name))
    with pytest.raises(LogDirectoryError, match=f"staged on worker-2, but {HERE} does not see them"):
        writer.commit([message])


# As Spark's daemon does: after each task of a reused worker, it collects.
REUSED_WORKER = """
import gc, pickle, resource, sys
sent = sys.stdin.buffer.read(int(sys.argv[1]))
partition = pickle.loads(sys.stdin.buffer.read())
kibibytes = []
for number in range(1, int(sys.argv[2]) + 1):
    reader = pickle.loads(sent)
    assert sum(rows.num_rows for rows in reader.read(partition)) == 3
    del reader
    gc.collect()
    if number % (int(sys.argv[2]) // 10) == 0:
        with open("/proc/self/statm") as file:
            kibibytes.append(int(file.read().split()[1]) * resource.getpagesize() >> 10)
print(gc.get_freeze_count(), len(gc.get_objects()), *kibibytes)
"""


def reused(logs, tasks, **environment):
    """Run tasks in one process, and return how many objects it froze, how many others it has, and its memory in KiB."""
    reader = reader_of(logs.path)
    (partition,) = reader.partitions()
    sent_reader = cloudpickle.dumps(reader)
    done = subprocess.run(
        [sys.executable, "-c", REUSED_WORKER, str(len(sent_reader)), str(tasks)],
        input=sent_reader + cloudpickle.dumps(partition),
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    frozen, others, *kibibytes = map(int, done.stdout.split())
    return frozen, others, kibibytes


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_worker_freezes_what_it_has_loaded_unless_told_not_to(new_logs, records_of, is_frozen):
    new_logs.write("a", 0, records_of(3))
    frozen, others, _ = reused(new_logs, 10, SEGMENTLOG_GC_FREEZE="1" if is_frozen else "0")
    assert (frozen > others) == is_frozen


@pytest.mark.thorough
def test_a_worker_that_is_reused_for_5_000_tasks_does_not_grow(new_logs, records_of):
    new_logs.write("a", 0, records_of(3))
    _, others_once, _ = reused(new_logs, 100)
    _, others, kibibytes = reused(new_logs, 5_000)
    # Each leaked object of a task would count 5,000 times, and each leaked kilobyte take 4.5 MB.
    assert others < others_once + 500
    assert kibibytes[-1] < kibibytes[0] + 2_048


@pytest.mark.parametrize("is_collecting", [True, False])
def test_restoring_leaves_the_collector_as_it_was(monkeypatch, new_logs, records_of, is_collecting):
    new_logs.write("a", 0, records_of(3))
    sent_reader = cloudpickle.dumps(reader_of(new_logs.path))
    seen = []
    monkeypatch.setattr(workers, "prepare_once", lambda: seen.append(gc.isenabled()))
    if not is_collecting:
        gc.disable()
    try:
        pickle.loads(sent_reader)
        assert (seen, gc.isenabled()) == ([False], is_collecting)
    finally:
        gc.enable()


# As Spark's daemon is: the main module. What it runs for a task has frames of PySpark.
TASK = """
def task():
    try:
        os.write(writing, b"x")
    except BrokenPipeError:
        print("the task's own", flush=True)
"""
DAEMON = f"""
import importlib.machinery, os
__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
from spark_segmentlog import workers
workers.prepare_once()
reading, writing = os.pipe()
os.close(reading)
module = {{"__name__": "pyspark.worker", "os": os, "writing": writing}}
exec({TASK!r}, module)
module["task"]()
# A function of a user that was made without a module.
module["from_text"] = dict(os=os, writing=writing, print=print)
exec({TASK!r}, module["from_text"])
exec("from_text['task']()", module)
os.write(writing, b"x")
"""


def test_a_worker_ends_without_a_word_if_spark_has_stopped_reading():
    done = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the task's own\n" * 2, "")
