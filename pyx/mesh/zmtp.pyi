"""ZMTP 3.1, the wire protocol of ZeroMQ, with the NULL mechanism: bytes to frames, and back."""

class ZmtpError(Exception):
    """The peer does not speak ZMTP 3 with the NULL mechanism, or has the wrong socket type."""
