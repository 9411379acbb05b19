from typing import Any, final

from pyx.protocol.encoders import PINGREQ_BYTES as PINGREQ_BYTES
from pyx.protocol.encoders import PINGRESP_BYTES as PINGRESP_BYTES
from pyx.protocol.encoders import encode_ack as encode_ack
from pyx.protocol.encoders import encode_auth as encode_auth
from pyx.protocol.encoders import encode_connack as encode_connack
from pyx.protocol.encoders import encode_connect as encode_connect
from pyx.protocol.encoders import encode_disconnect as encode_disconnect
from pyx.protocol.encoders import encode_publish as encode_publish
from pyx.protocol.encoders import encode_suback as encode_suback
from pyx.protocol.encoders import encode_subscribe as encode_subscribe
from pyx.protocol.encoders import encode_unsuback as encode_unsuback
from pyx.protocol.encoders import encode_unsubscribe as encode_unsubscribe
from pyx.protocol.packets import Packet

class Incomplete(Exception): ...

def decode(data: bytes, version: int, from_server: bool = False) -> Packet: ...

@final
class Decoder:
    version: int
    @property
    def from_server(self) -> bool: ...
    @property
    def packet_bytes_max(self) -> int: ...
    def __init__(self, version: int = 4, from_server: bool = False, packet_bytes_max: int = 268_435_460) -> None: ...
    def feed(self, data: bytes) -> None: ...
    def next_packet(self) -> Packet | None: ...

def publish_fields(flags: int, body: bytes, v5: bool) -> dict[str, Any]: ...
