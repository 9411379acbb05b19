"""The number of a host in its cluster, by which messages between hosts name it (`pyx.core.peer`).

It belongs to an installation for ever: what other hosts have stored about a host (positions of links, hand-off logs)
names its number, and must not be taken for what another installation has said.
"""

from __future__ import annotations

from typing import Final

from broker.cluster.contract import Coordination, CoordinationError, KeyCondition, Put
from pyx.core.peer import HOSTS_MAX, OWN_HOST

__all__ = ["NoNumberLeft", "keep_number", "keys_of_number", "number_of_host", "prefix_of_numbers"]

_DIGITS: Final = len(str(HOSTS_MAX))


class NoNumberLeft(CoordinationError):
    """Every number has been given away: HOSTS_MAX - 1 installations were hosts of this cluster."""


async def number_of_host(coordination: Coordination, cluster: str, installation: str) -> int:
    """Return the number of an installation, from 1 to HOSTS_MAX - 1; a new one if it has none yet.

    Raises CoordinationError; then it may have been given one all the same, which the next call returns.
    """
    by_number, by_installation = prefix_of_numbers(cluster), keys_of_number(cluster, installation, 0)[1]
    while True:
        found = await coordination.read(by_installation)
        if found is not None:
            return int(found.value)
        # never given to another one, so the highest is the number of those that were given
        taken = (await coordination.read_all(by_number)).entries
        number = int(taken[-1].key.removeprefix(by_number)) + 1 if taken else OWN_HOST + 1
        if number >= HOSTS_MAX:
            raise NoNumberLeft(
                f"the cluster {cluster!r} has had {HOSTS_MAX - 1} hosts: there is no number for another one"
            )
        await _give(coordination, cluster, installation, number)


async def keep_number(coordination: Coordination, cluster: str, installation: str, number: int) -> bool:
    """Write the number of an installation again if the coordinator has lost it. Return whether it has it still: if not,
    another installation was given the number meanwhile, or it another number. Raises CoordinationError.
    """
    by_installation = keys_of_number(cluster, installation, 0)[1]
    found = await coordination.read(by_installation)
    if found is None:
        await _give(coordination, cluster, installation, number)
        found = await coordination.read(by_installation)
    return found is not None and int(found.value) == number


def prefix_of_numbers(cluster: str) -> bytes:
    """Return the prefix of the numbers that were given."""
    return f"/mqttd/{cluster}/numbers/".encode()


def keys_of_number(cluster: str, installation: str, number: int) -> tuple[bytes, bytes]:
    """Return the key of a number that was given, and the key of an installation's."""
    by_number = prefix_of_numbers(cluster) + f"{number:0{_DIGITS}d}".encode()
    return by_number, f"/mqttd/{cluster}/installations/{installation}".encode()


async def _give(coordination: Coordination, cluster: str, installation: str, number: int) -> None:
    """Give an installation a number, if neither is taken."""
    key, by_installation = keys_of_number(cluster, installation, number)
    await coordination.transact(
        [KeyCondition(key, 0), KeyCondition(by_installation, 0)],
        [Put(key, installation.encode()), Put(by_installation, str(number).encode())],
    )
