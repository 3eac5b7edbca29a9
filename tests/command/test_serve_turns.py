"""Large requests of `jfluid serve` wait for small ones, and not for long."""

import asyncio
import time

from jfluid.serving import turns
from jfluid.serving.blocks import SMALL
from jfluid.serving.turns import Turns


def test_a_large_request_waits_until_no_small_one_is_under_way(monkeypatch):
    monkeypatch.setattr(turns, "_PATIENCE", 60.0)
    done = []

    async def large(found, which):
        await which(found)
        done.append("large")

    async def run():
        found = Turns()
        with found.under_way(SMALL):
            with found.under_way(10):
                tasks = [
                    asyncio.create_task(large(found, which))
                    for which in (Turns.reading, Turns.writing)
                ]
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)
            done.append("small")
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert done == ["small", "large", "large"]


def test_a_large_request_goes_on_though_small_ones_never_end():
    async def run():
        found = Turns()
        with found.under_way(1):
            began = time.monotonic()
            for _ in range(3):
                await asyncio.gather(found.reading(), found.writing())
            return time.monotonic() - began

    assert asyncio.run(run()) >= 2 * turns._PATIENCE


def test_large_requests_do_not_wait_for_large_ones_that_are_answered(monkeypatch):
    monkeypatch.setattr(turns, "_PATIENCE", 60.0)

    async def run():
        found = Turns()
        with found.under_way(SMALL + 1):
            async with asyncio.timeout(30):
                await found.reading()

    asyncio.run(run())
