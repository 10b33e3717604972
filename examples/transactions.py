"""Transactions, whose records are seen together or never, and idempotent appends, which can be retried.

    python examples/transactions.py

The program starts itself as a child that dies in the middle of its work, and continues where it stopped.
"""

import os
import signal
import subprocess
import sys
import tempfile

import pyarrow as pa

from storage_core import Log, LogDirectory, ProducerSequence
from storage_core.errors import OutOfOrderSequenceError

ORDERS = [f"order {number}".encode() for number in range(10)]
CREDIT = 100
SENDER = 1  # a producer id of this program's choice


def records(*values: bytes) -> pa.Table:
    """Values as records."""
    return pa.table({"value": list(values)})


def seen(log: Log, isolation_level: str = "read_committed") -> list[str]:
    """List the values that a reader sees."""
    batches = log.read(columns=["value"], isolation_level=isolation_level)
    return [value.decode() for batch in batches for value in batch["value"].to_pylist()]


def send_orders(log: Log) -> int:
    """Send all orders again, as after a lost acknowledgement; return how many were new."""
    new = 0
    for number, order in enumerate(ORDERS):
        try:
            info = log.append(records(order), producer=ProducerSequence(SENDER, 0, number), acks="all")
            new += not info.is_duplicate
        except OutOfOrderSequenceError as error:
            # The log no longer remembers this batch, but it has all records up to here.
            if number >= error.expected_sequence:
                raise
    return new


def transfer_money(log: Log, payer: str, payee: str, amount: int) -> None:
    """Write both sides of a transfer, or neither. All of it is on disk when this returns."""
    with log.transaction(flush=True) as transfer:
        transfer.append(records(f"{payer} -{amount}".encode()))
        if amount > CREDIT:
            raise ValueError(f"{payer} has no {amount}")
        transfer.append(records(f"{payee} +{amount}".encode()))


def die_at_work(path: str) -> None:
    """Send some orders, transfer money, and die in the middle of another transfer."""
    with LogDirectory.open(path) as logs:
        orders, accounts = logs.create("orders"), logs.create("accounts")
        for number, order in enumerate(ORDERS[:7]):
            orders.append(records(order), producer=ProducerSequence(SENDER, 0, number), acks="all")
        transfer_money(accounts, "alice", "bob", 5)
        with accounts.transaction() as transfer:
            transfer.append(records(b"bob -3"))
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Let a child die, then recover."""
    with tempfile.TemporaryDirectory() as path:
        subprocess.run([sys.executable, __file__, path], check=False)  # noqa: S603  (this very file)
        with LogDirectory.open(path) as logs:
            orders, accounts = logs.get("orders"), logs.get("accounts")
            print(
                f"orders sent again: {send_orders(orders)} of {len(ORDERS)} were new, {len(seen(orders))} are there"
            )

            print(f"written: {seen(accounts, 'read_uncommitted')}, committed: {seen(accounts)}")
            (left_open,) = accounts.open_transactions()
            print(f"left open from offset {left_open.first_offset} on")
            accounts.abort_transaction(left_open.producer_id)

            try:
                transfer_money(accounts, "carol", "bob", 1000)
            except ValueError as error:
                print(f"taken back: {error}")
            transfer_money(accounts, "bob", "carol", 3)
            print(f"committed: {seen(accounts)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        die_at_work(sys.argv[1])
    else:
        main()
