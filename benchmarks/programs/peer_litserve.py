"""Serves `peer_work` with LitServe. Runs in the virtual environment of the extra `bench-peers`.

    python peer_litserve.py PORT SETTING_AS_JSON

A setting has `kind`, `models`, `threads`, `workers`, `batch` (largest batch; 1: none), `window_s` and `fast_queue`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litserve
import peer_work


class Classify(litserve.LitAPI):
    """Runs inferences in worker processes, in batches if the setting's `batch` is more than 1."""

    def __init__(self, setting: dict[str, Any]) -> None:
        super().__init__(max_batch_size=setting["batch"], batch_timeout=setting["window_s"])
        self.setting = setting

    def setup(self, device: str) -> None:
        self.work = peer_work.load(self.setting["kind"], self.setting["models"], self.setting["threads"])

    # `request` has no annotation, because LitServe takes a parameter that is annotated with another type than its own
    # request type as a parameter of the URL.
    def decode_request(self, request) -> list[float]:
        return request["pixels"]

    def batch(self, inputs: list[list[float]]) -> list[list[float]]:
        return inputs

    def predict(self, inputs: Any) -> Any:
        return self.work(inputs) if self.setting["batch"] > 1 else self.work([inputs])[0]

    def unbatch(self, output: list[int]) -> list[int]:
        return output

    def encode_response(self, output: int) -> dict[str, int]:
        return {"label": output}


class Sleep(litserve.LitAPI):
    """The sleeping handler in LitServe's fastest form: one worker, whose event loop waits for all requests together."""

    def __init__(self) -> None:
        super().__init__(enable_async=True)

    def setup(self, device: str) -> None:
        pass

    async def decode_request(self, request) -> list[float]:
        return request["pixels"]

    async def predict(self, inputs: list[float]) -> int:
        await asyncio.sleep(peer_work.SLEEP_S)
        return 0

    async def encode_response(self, output: int) -> dict[str, int]:
        return {"label": output}


def main() -> None:
    """Serve ``POST /predict`` until SIGTERM."""
    setting = json.loads(sys.argv[2])
    api = Sleep() if setting["kind"] == "sleep" else Classify(setting)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=setting["workers"], fast_queue=setting["fast_queue"], timeout=120
    )
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        log_level="error",
        access_log=False,
        generate_client_file=False,
    )


if __name__ == "__main__":
    main()
