"""The program behind ``thawd up --aws``: moto's server on a free port of loopback, told on standard output.

Ends when its standard input does, and so with the thawd that started it. Nothing imports it: moto is an extra.
"""

from __future__ import annotations

import logging
import os
import sys
import threading


def main() -> None:
    """Serve until standard input ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
