"""The host names that the service accepts: a page of another site must not reach it through that site's name.

A site whose name resolves to the address of this machine (DNS rebinding) can make a browser here send it the
answers of the service. Such a request has that site's name as its Host; an address as the Host is safe.
"""

import ipaddress
import json
from typing import Sequence

ANY = "*"
MISDIRECTED = 421


class HostCheck:
    """ASGI middleware that refuses requests whose Host is a name other than ``hosts``.

    Allowed are addresses, localhost, ``hosts`` with any port, and a missing Host, which browsers never
    send. A refusal has status 421.
    """

    def __init__(self, app, hosts: Sequence[str]):
        self.app, self.hosts = app, {"localhost", *(host.lower().rstrip(".") for host in hosts)}

    async def __call__(self, scope, receive, send) -> None:
        """Pass a request on to the application, or refuse it."""
        if scope["type"] != "http" or ANY in self.hosts:
            return await self.app(scope, receive, send)
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if all(map(self._is_allowed, given)):
            return await self.app(scope, receive, send)
        reason = f"the service is not called {given[0][:60]}; name it with --allowed_hosts"
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": MISDIRECTED, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})

    def _is_allowed(self, given: str) -> bool:
        name = _name_of(given)
        return not name or name in self.hosts or _is_address(name)


def _name_of(given: str) -> str:
    """Return the host in a Host header, without its port: of [::1]:8000 it is ::1."""
    text = given.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
