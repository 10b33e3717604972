"""Streams beside a broker: whatever is killed, each record is in each output once, and in order."""

from __future__ import annotations

import time

import pytest

from tests.interop.broker import KafkaBroker
from tests.interop.streaming_campaign import BROKER_SETTINGS, Campaign
from tests.interop.streaming_driver import STEPS

pytestmark = pytest.mark.spark

KILLS = 16
SOAK_KILLS = 200


def run_campaign(folder, kills, seed):
    with KafkaBroker(folder / "broker", BROKER_SETTINGS) as broker:
        campaign = Campaign(broker, folder, seed)
        campaign.run(kills)
    assert sum(campaign.kills.values()) == kills
    assert {f"{step}, worker" for step in STEPS} <= campaign.kills.keys()
    ending = STEPS[STEPS.index("journal written") :] if kills == KILLS else STEPS
    assert {f"{step}, driver" for step in ending} <= campaign.kills.keys()
    assert all(len(rows) > 50 for rows in campaign.consumed.values())
    return campaign


def test_each_record_once_after_kills_at_every_step(tmp_path):
    run_campaign(tmp_path, KILLS, seed=7)


@pytest.mark.soak
def test_each_record_once_after_many_kills(tmp_path, capsys):
    seed = int(time.time())
    with capsys.disabled():
        print(f"\nseed {seed}")
        print(run_campaign(tmp_path, SOAK_KILLS, seed).kills)
