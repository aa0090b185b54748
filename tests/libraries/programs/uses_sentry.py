"""sentry_sdk: a thread that sends events over a keep-alive connection; both exist at the freeze."""

from __future__ import annotations

from typing import Any

import repeated
import sentry_sdk

DEADLINE_S = 60


class Sentry:
    """The client."""

    def __init__(self, options: repeated.Options) -> None:
        address = options.address.replace("http://", "http://key@")
        sentry_sdk.init(
            dsn=f"{address}/1", default_integrations=False, auto_enabling_integrations=False, keep_alive=True
        )

    def answer(self, number: int) -> Any:
        with sentry_sdk.new_scope() as scope:
            scope.set_tag("name", repeated.name())
            sentry_sdk.capture_message(f"the square of {number} is {number * number}", scope=scope)
        sentry_sdk.flush(DEADLINE_S)
        return number * number


if __name__ == "__main__":
    repeated.main(Sentry)
