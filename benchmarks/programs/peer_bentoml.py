"""Serves `peer_work` with BentoML and one worker. Runs in the virtual environment of the extra `bench-peers`.

    PEER_SETTING=JSON bentoml serve peer_bentoml:Peer

The setting is a JSON object with `kind`, `models`, `threads` and `is_async`; other fields are ignored.
"""

from __future__ import annotations

import asyncio
import json
import os

import bentoml
import peer_work

SETTING = json.loads(os.environ["PEER_SETTING"])


@bentoml.service(name="peer", workers=1, traffic={"timeout": 120}, logging={"access": {"enabled": False}})
class Peer:
    """The service, which answers ``POST /predict`` in the way that the setting asks for."""

    def __init__(self) -> None:
        self.work = peer_work.load(SETTING["kind"], SETTING["models"], SETTING["threads"])

    if SETTING["kind"] == "sleep":

        @bentoml.api
        async def predict(self, pixels: list[float]) -> dict[str, int]:
            await asyncio.sleep(peer_work.SLEEP_S)
            return {"label": 0}

    elif SETTING["is_async"]:

        @bentoml.api
        async def predict(self, pixels: list[float]) -> dict[str, int]:
            return {"label": self.work([pixels])[0]}

    else:

        @bentoml.api
        def predict(self, pixels: list[float]) -> dict[str, int]:
            return {"label": self.work([pixels])[0]}
