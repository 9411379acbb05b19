"""Hosts of a cluster in network namespaces of their own, on one Ethernet that a test can cut: between two hosts, in one
direction or in both, and between a host and etcd.

    the tests   N.254  ---+---  switch  ---+---  N.1  host n0
    etcd        N.253  ---+                +---  N.2  host n1 ...

N is 10.231.0 to 10.231.199, the first unused one. A host may be far from the switch (`delay_line`). Needs root, and
Debian's iproute2.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from tests.cluster.etcd_process import EtcdProcess, etcd_process
from tests.cluster.hosts import ClusteredHost, Hosts

__all__ = ["ETCD", "NamespacedHosts", "namespaced_hosts_of"]

ETCD = -1
"""The place of etcd among the hosts."""
_NETWORKS_MAX = 200
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
"""<linux/if_tun.h>"""
_NOBODY = "02:00:00:00:00:01"
"""A hardware address that no interface has: what is sent to it is lost, and nobody is told."""


def _ip(*arguments: str) -> None:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"


def _tap(name: str) -> int:
    """Return the descriptor of a new tap interface, which lives as long as somebody has it."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def _claimed() -> tuple[int, BinaryIO]:
    """Return the number of a network that nobody uses, and the file that holds it until it is closed."""
    for at in range(_NETWORKS_MAX):
        claim = open(f"/tmp/mqttd-test-network-{at}", "ab")  # noqa: SIM115  it stays open
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            claim.close()
        else:
            return at, claim
    raise AssertionError(f"{_NETWORKS_MAX} networks are in use")


class Network:
    """A switch, a namespace for each host, and the interface of the tests."""

    def __init__(self, hosts: int, delays_ms: Mapping[int, int] = MappingProxyType({})) -> None:
        at, self._claim = _claimed()
        self._delays_ms = delays_ms
        self._lines: list[subprocess.Popen[bytes]] = []
        self._switch = f"mqttd{at}"
        self._prefix = f"10.231.{at}"
        self.address = f"{self._prefix}.254"
        self.etcd_address = f"{self._prefix}.253"
        self._hosts = [f"{self._switch}h{host}" for host in range(hosts)]
        self._here = f"{self._switch}t"
        self._cuts: set[tuple[int, int]] = set()
        self._remove_namespaces()  # of a run that was killed
        try:
            self._build()
        except BaseException:
            self.remove()
            raise

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge", "stp_state", "0")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        _ip("link", "add", self._here, "type", "veth", "peer", "name", "tests", "netns", self._switch)
        for name in (self.address, self.etcd_address):
            _ip("address", "add", f"{name}/24", "dev", self._here)
        _ip("link", "set", self._here, "up")
        self._plug("tests")
        for at, namespace in enumerate(self._hosts):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
            port = f"host{at}"
            if self._delays_ms.get(at):
                self._draw_line(port, namespace, self._delays_ms[at])
            else:
                _ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch)
            _ip("-n", namespace, "address", "add", f"{self.address_of(at)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            self._plug(port)

    def _draw_line(self, port: str, namespace: str, delay_ms: int) -> None:
        taps = []
        try:
            for name, of, end in ((port, self._switch, "s"), ("eth0", namespace, "h")):
                here = f"{self._switch}{end}{len(self._lines)}"
                taps.append(_tap(here))
                _ip("link", "set", here, "netns", of, "name", name)
            command = (sys.executable, "-m", "tests.cluster.delay_line", *map(str, taps), str(delay_ms))
            self._lines.append(subprocess.Popen(command, pass_fds=taps, stdin=subprocess.PIPE))
        finally:
            for tap in taps:
                os.close(tap)

    def _plug(self, port: str) -> None:
        _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")

    def address_of(self, at: int) -> str:
        """Return the address of a host, or of etcd."""
        return self.etcd_address if at == ETCD else f"{self._prefix}.{at + 1}"

    def command_in(self, at: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs a command in the namespace of a host."""
        return ["ip", "netns", "exec", self._hosts[at], *command]

    def cut(self, sender: int, receiver: int) -> None:
        """Lose from now on what one host sends to another one, or to etcd. What etcd sends is lost by cutting the way
        of a host to it: its acknowledgements of TCP are.
        """
        neighbour = (self.address_of(receiver), "lladdr", _NOBODY, "nud", "permanent", "dev", "eth0")
        _ip("-n", self._hosts[sender], "neighbour", "replace", *neighbour)
        self._cuts.add((sender, receiver))

    def cut_off(self, host: int, others: Sequence[int]) -> None:
        """Lose what a host sends to others and they to it."""
        for other in others:
            self.cut(host, other)
            if other != ETCD:
                self.cut(other, host)

    def heal(self) -> None:
        """Let everything through again."""
        for sender, receiver in self._cuts:
            _ip("-n", self._hosts[sender], "neighbour", "delete", self.address_of(receiver), "dev", "eth0")
        self._cuts.clear()

    def remove(self) -> None:
        """Remove everything, and let others have its number."""
        try:
            for line in self._lines:
                line.communicate()
                assert line.returncode == 0, "a delay line has failed"
            self._remove_namespaces()
        finally:
            self._claim.close()

    def _remove_namespaces(self) -> None:
        # with the namespaces it would go, too, but some time later
        if Path("/sys/class/net", self._here).exists():
            _ip("link", "delete", self._here)
        folder = Path("/run/netns")
        for namespace in folder.iterdir() if folder.exists() else ():
            if namespace.name == self._switch or namespace.name.startswith(f"{self._switch}h"):
                _ip("netns", "delete", namespace.name)


class NamespacedHost(ClusteredHost):
    """A host in a namespace of its own."""

    def __init__(
        self,
        network: Network,
        at: int,
        workers: int,
        etcd: EtcdProcess,
        store: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        **limits: float,
    ) -> None:
        self._network, self._at = network, at
        environment = {"MQTTD_ALLOW_ANONYMOUS": "true", **environment}  # its address is not the loopback's
        super().__init__(f"n{at}", workers, etcd, store, environment, network.address_of(at), **limits)
        self.host = network.address_of(at)

    def _command(self) -> list[str]:
        return self._network.command_in(self._at, super()._command())


class NamespacedHosts(Hosts):
    """The hosts of a cluster. `network`: theirs."""

    network: Network


@contextlib.contextmanager
def namespaced_hosts_of(
    workers: Sequence[int],
    store: str = "memory",
    environment: Mapping[str, str] = MappingProxyType({}),
    delays_ms: Mapping[int, int] = MappingProxyType({}),
    **limits: float,
) -> Iterator[NamespacedHosts]:
    """Run a host for each number of workers, linked with each other. At the end none may have failed within. delays_ms:
    by host, how long what it sends or gets is on the way.
    """
    with contextlib.ExitStack() as stack:
        hosts = NamespacedHosts()
        hosts.network = Network(len(workers), delays_ms)
        stack.callback(hosts.network.remove)
        hosts.etcd = stack.enter_context(etcd_process(host=hosts.network.etcd_address))
        for at, count in enumerate(workers):
            hosts.run(NamespacedHost(hosts.network, at, count, hosts.etcd, store, environment, **limits), stack)
        yield from hosts.linked()
