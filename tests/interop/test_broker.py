"""The harness itself: brokers start, stop, can be killed, and never outlive their process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.broker import BrokerError, KafkaBroker
from tests.interop.broker_start import BrokerStart

REPOSITORY = Path(__file__).resolve().parents[2]

_ABANDON = """
import sys
from tests.interop.broker import KafkaBroker
broker = KafkaBroker(sys.argv[1]).start()
print(broker.process_id, flush=True)
sys.stdin.read()
"""


def _is_alive(process_id: int) -> bool:
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A zombie is dead, too.
    return "State:\tZ" not in status


def test_stop_kill_and_restart(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        assert broker.is_running
        servers = broker.bootstrap_servers
        broker.stop()
        assert not broker.is_running
        assert (broker.log_directory / ".kafka_cleanshutdown").exists()
        broker.restart()
        assert broker.bootstrap_servers == servers
        broker.kill()
        assert not broker.is_running
        assert not (broker.log_directory / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_broker_ends_with_the_process_that_started_it(tmp_path: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-c", _ABANDON, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as abandoning:
        assert abandoning.stdout is not None
        process_id = int(abandoning.stdout.readline())
        assert _is_alive(process_id)
        abandoning.send_signal(ending)
    deadline = time.monotonic() + 60
    while _is_alive(process_id):
        assert time.monotonic() < deadline, "the broker outlived its process"
        time.sleep(0.05)


def test_failed_start_says_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, {"log.cleaner.threads": -1})
    with pytest.raises(BrokerError, match=r"log\.cleaner\.threads"):
        broker.start()
    assert not broker.is_running


def test_unusual_lines_concern_logs_and_not_the_quorum() -> None:
    of_a_log = "[2026-11-23 19:09:59,868] WARN [LogLoader partition=a-0] Found a corrupted index (kafka.log.LogLoader)"
    of_the_quorum = [
        "[2026-11-23 19:09:59,868] ERROR [ControllerApis nodeId=1] Unexpected error (kafka.server.ControllerApis)",
        "[2026-11-23 19:09:59,868] WARN [QuorumController id=1] Slow (org.apache.kafka.controller.QuorumController)",
        "[2026-11-23 19:09:59,868] WARN Attempting to close NetworkClient (org.apache.kafka.clients.NetworkClient)",
        "[2026-11-23 19:09:59,868] WARN Heartbeat (kafka.server.BrokerLifecycleManager)",
        "[2026-11-23 19:09:59,868] INFO Usual (kafka.server.KafkaRaftServer)",
    ]
    assert BrokerStart("\n".join([*of_the_quorum, of_a_log])).unusual() == [of_a_log]
