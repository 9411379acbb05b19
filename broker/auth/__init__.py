"""Who a client is: where users come from, and how they prove who they are.

A back-end is one file here and one line in BACKENDS, and all that are configured are a chain in the order of these
lines (`broker.auth.chain`); an authentication method of MQTT 5 is one file and one line in
METHODS. What happens to a connection meanwhile is decided in `broker.clients.authenticating`.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.auth.chain import Chain
from broker.auth.contract import Backend, Method
from broker.auth.password_file import PasswordFile
from broker.auth.scram import Exchange

__all__ = ["BACKENDS", "METHODS"]

BACKENDS: dict[str, Callable[[str], Backend]] = {
    # setting: opened with the setting's value; raises CredentialsError
    "password_file": PasswordFile.load,
}

METHODS: dict[str, Callable[[Chain], Method]] = {
    "SCRAM-SHA-256": lambda users: Exchange(users.scram),
}
