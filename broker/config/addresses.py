"""Addresses in the form that operators write."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether other machines cannot reach an address or name. Names other than localhost count as reachable."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def split_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT, with an IPv6 host in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or host != host.strip() or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(text)
    return host, int(port)
