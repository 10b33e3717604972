"""A durable event log in a Python program: acknowledged records outlive the process that wrote them.

    python examples/embedded_log.py

The program starts itself as a child that writes readings, kills the child, and continues where it stopped.
"""

import subprocess
import sys
import tempfile

import pyarrow as pa

from storage_core import LogDirectory


def write_readings(path: str) -> None:
    """Append readings forever, and print each one once it is on disk."""
    with LogDirectory.open(path) as logs:
        log = logs.get_or_create("readings")
        while True:
            reading = pa.table(
                {"key": [b"sensor-7"], "value": [f"{log.log_end_offset % 30} degrees".encode()]}
            )
            print(log.append(reading, acks="all").last_offset, flush=True)


def main() -> None:
    """Kill a writer, and show that none of its acknowledged records is lost."""
    with tempfile.TemporaryDirectory() as path:
        command = [sys.executable, __file__, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:  # noqa: S603  (this very file)
            acknowledged = [int(writer.stdout.readline()) for _ in range(1000)]
            writer.kill()
            acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
        print(f"killed after reading {acknowledged[-1]} was acknowledged")

        with LogDirectory.open(path) as logs:
            log = logs.get("readings")
            found = [
                offset for batch in log.read(columns=["offset"]) for offset in batch["offset"].to_pylist()
            ]
            print(f"found {len(found)} readings; lost: {sorted(set(acknowledged) - set(found))}")
            info = log.append(pa.table({"value": [b"a new start"]}), acks="all")
            (last,) = log.read(start_offset=info.first_offset)
            print(f"went on at offset {info.first_offset}: {last['value'][0].as_py().decode()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_readings(sys.argv[1])
    else:
        main()
