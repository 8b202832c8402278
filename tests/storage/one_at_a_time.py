"""moto's S3 server, which looks and writes in two steps: one request at a time makes a conditional
put exclusive, as in a real service.

python -m tests.storage.one_at_a_time PORT
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

_dispatcher = DomainDispatcherApplication(create_backend_app)
_turn = threading.Lock()


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    with _turn:
        return list(_dispatcher(environ, start_response))


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
