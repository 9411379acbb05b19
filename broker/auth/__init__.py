"""Authentication of clients: back-ends hold the users, methods let clients prove who they are.

A back-end is one file here and one line in BACKENDS; all configured ones form a chain in the order of these lines
(`broker.auth.chain`). An authentication method of MQTT 5 is one file and one line in METHODS. The state of the
connection meanwhile is handled in `broker.clients.authenticating`.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.auth.chain import Chain
from broker.auth.contract import Backend, Method
from broker.auth.password_file import PasswordFile
from broker.auth.scram import Exchange

__all__ = ["BACKENDS", "METHODS"]

BACKENDS: dict[str, Callable[[str], Backend]] = {
    # setting: a function of its value that opens the back-end; raises CredentialsError
    "password_file": PasswordFile.load,
}

METHODS: dict[str, Callable[[Chain], Method]] = {
    "SCRAM-SHA-256": lambda users: Exchange(users.scram),
}
