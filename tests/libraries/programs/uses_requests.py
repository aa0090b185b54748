"""requests: a session with an idle open connection at the freeze."""

from __future__ import annotations

from typing import Any

import repeated
import requests


class Requests:
    """A session."""

    def __init__(self, options: repeated.Options) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = options.certificate or True
        self._address = options.address

    def answer(self, number: int) -> Any:
        response = self._session.get(f"{self._address}/square/{number}", params={"name": repeated.name()}, timeout=60)
        said = response.json()
        assert said["name"] == repeated.name(), said
        repeated.connections.append(said["connection"])
        return said["square"]


if __name__ == "__main__":
    repeated.main(Requests)
