"""Packet classes for Python, one per packet. Plain values: equal when their fields are, no behaviour."""
import cython


cdef class Packet:
    """The base of all packets. `fields` names the attributes in the order of the constructor."""

    fields = ()

    def _values(self) -> tuple:
        return tuple([getattr(self, name) for name in self.fields])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == (<Packet>other)._values()

    __hash__ = None

    def __repr__(self) -> str:
        # a CONNECT's password must not get into logs and test reports
        shown = [
            f"{name}={'...' if name == 'password' and value is not None else repr(value)}"
            for name, value in zip(self.fields, self._values())
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@cython.final
cdef class Will(Packet):
    """The Will Message of a CONNECT (MQTT 5, 3.1.3.2 to 3.1.3.4)."""

    fields = ("topic", "payload", "qos", "retain", "delay_interval", "expiry_interval", "properties")

    def __init__(self, bytes topic not None, bytes payload not None, uint8_t qos=0, bint retain=False,
                 uint32_t delay_interval=0, expiry_interval=None, bytes properties not None=b""):
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.delay_interval = delay_interval
        self.expiry_interval = expiry_interval
        self.properties = properties


@cython.final
cdef class Connect(Packet):
    """CONNECT (MQTT 5, 3.1). In versions 3 and 4 clean_start is the Clean Session flag."""

    fields = ("version", "client_id", "clean_start", "keep_alive", "username", "password", "will", "properties")

    def __init__(self, uint8_t version, str client_id not None, bint clean_start=True, uint16_t keep_alive=0,
                 str username=None, bytes password=None, Will will=None, dict properties=None):
        self.version = version
        self.client_id = client_id
        self.clean_start = clean_start
        self.keep_alive = keep_alive
        self.username = username
        self.password = password
        self.will = will
        self.properties = {} if properties is None else properties


@cython.final
cdef class Subscription(Packet):
    """One Topic Filter of a SUBSCRIBE with its Subscription Options byte (MQTT 5, 3.8.3.1)."""

    fields = ("filter", "options")

    def __init__(self, bytes filter not None, uint8_t options=0):
        self.filter = filter
        self.options = options

    @property
    def qos(self) -> int:
        return self.options & 0x03

    @property
    def no_local(self) -> bool:
        return self.options & 0x04 != 0

    @property
    def retain_as_published(self) -> bool:
        return self.options & 0x08 != 0

    @property
    def retain_handling(self) -> int:
        return self.options >> 4 & 0x03


@cython.final
cdef class Subscribe(Packet):
    """SUBSCRIBE (MQTT 5, 3.8)."""

    fields = ("packet_id", "filters", "identifier", "properties")

    def __init__(self, uint16_t packet_id, list filters not None, uint32_t identifier=0, dict properties=None):
        self.packet_id = packet_id
        self.filters = filters
        self.identifier = identifier
        self.properties = {} if properties is None else properties


@cython.final
cdef class Unsubscribe(Packet):
    """UNSUBSCRIBE (MQTT 5, 3.10)."""

    fields = ("packet_id", "filters", "properties")

    def __init__(self, uint16_t packet_id, list filters not None, dict properties=None):
        self.packet_id = packet_id
        self.filters = filters
        self.properties = {} if properties is None else properties


@cython.final
cdef class Disconnect(Packet):
    """DISCONNECT (MQTT 5, 3.14)."""

    fields = ("reason_code", "properties")

    def __init__(self, uint8_t reason_code=0, dict properties=None):
        self.reason_code = reason_code
        self.properties = {} if properties is None else properties


@cython.final
cdef class Auth(Packet):
    """AUTH (MQTT 5, 3.15)."""

    fields = ("reason_code", "properties")

    def __init__(self, uint8_t reason_code=0, dict properties=None):
        self.reason_code = reason_code
        self.properties = {} if properties is None else properties


@cython.final
cdef class Publish(Packet):
    """PUBLISH (MQTT 5, 3.3), for tests and tools."""

    fields = ("topic", "payload", "qos", "retain", "dup", "packet_id", "properties")

    def __init__(self, bytes topic not None, bytes payload not None=b"", uint8_t qos=0, bint retain=False,
                 bint dup=False, uint16_t packet_id=0, dict properties=None):
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = {} if properties is None else properties


@cython.final
cdef class Ack(Packet):
    """PUBACK, PUBREC, PUBREL or PUBCOMP (MQTT 5, 3.4 to 3.7), for tests and tools."""

    fields = ("packet_type", "packet_id", "reason_code", "properties")

    def __init__(self, uint8_t packet_type, uint16_t packet_id, uint8_t reason_code=0, dict properties=None):
        self.packet_type = packet_type
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = {} if properties is None else properties


@cython.final
cdef class Connack(Packet):
    """CONNACK (MQTT 5, 3.2), for tests and tools. In versions 3 and 4 reason_code is the return code, 0 to 5."""

    fields = ("session_present", "reason_code", "properties")

    def __init__(self, bint session_present=False, uint8_t reason_code=0, dict properties=None):
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = {} if properties is None else properties


@cython.final
cdef class Suback(Packet):
    """SUBACK (MQTT 5, 3.9), for tests and tools."""

    fields = ("packet_id", "codes", "properties")

    def __init__(self, uint16_t packet_id, list codes not None, dict properties=None):
        self.packet_id = packet_id
        self.codes = codes
        self.properties = {} if properties is None else properties


@cython.final
cdef class Unsuback(Packet):
    """UNSUBACK (MQTT 5, 3.11), for tests and tools. Versions 3 and 4 have no codes."""

    fields = ("packet_id", "codes", "properties")

    def __init__(self, uint16_t packet_id, list codes not None, dict properties=None):
        self.packet_id = packet_id
        self.codes = codes
        self.properties = {} if properties is None else properties


@cython.final
cdef class Pingreq(Packet):
    """PINGREQ."""


@cython.final
cdef class Pingresp(Packet):
    """PINGRESP."""
