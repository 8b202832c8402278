"""The address at which an agent answers for its metrics and its health, in plain HTTP."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from imap_wal.checks import check_port
from imap_wal.errors import InvalidSetting

_PORT = re.compile(r":([0-9]{1,20})\Z")


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """`host`: an IP address. `port` 0: any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HttpAddress:
        """Raises `InvalidSetting`. Names are not looked up, because that may need a server."""
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname or "", _PORT.search(text)
            if parts.netloc != text or "@" in text or port is None:
                raise ValueError
            address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
        except ValueError:
            raise InvalidSetting(
                f"http_address is {text!r}; it takes the IP address and the port of this machine "
                'where metrics are served, as in "127.0.0.1:9413" or "[::1]:9413"; "" for none'
            ) from None
        check_port(port[1], "http_address", text, 0)
        return cls(str(address), int(port[1]))

    @property
    def doubt(self) -> str:
        """A warning for the operator about who may connect; "" if there is none."""
        if ipaddress.ip_address(self.host).is_loopback:
            return ""
        return (
            f"anyone who can reach {self} can read the metrics and the health of this process, "
            "which contain no keys, values or names of maps. Let only the scraper reach it, or use "
            "127.0.0.1"
        )

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
