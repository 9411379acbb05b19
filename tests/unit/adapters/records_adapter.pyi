from typing import Any

from pyx.protocol.message import Message
from pyx.storage.entries import Packed
from pyx.storage.records import Batch, Block, LogKey

Unpacked = tuple[bytes, bytes | None, int, int, bool, bytes, int, bytes | None, bool, int, bool, bool]

def add(block: Block, message: Message) -> int: ...
def index(block: Block, key: LogKey, record: int) -> None: ...
def merge(batches: list[Batch]) -> Batch: ...
def pack(
    packed: Packed,
    topic: bytes,
    payload: bytes,
    number: int,
    qos: int = 0,
    retain: bool = False,
    properties: bytes = b"",
    expires: int | None = None,
    shared: bytes | None = None,
    insist: bool = False,
    key: int = 0,
    own_frame: bool = False,
    retained_only: bool = False,
) -> None: ...
def unpack(data: Any) -> list[Unpacked]: ...
