"""What workers and the control process say to each other about owners."""

from __future__ import annotations

import struct

import pytest

from broker.cluster.owner_messages import (
    PACKET_BYTES_MAX,
    OwnerAnswer,
    OwnerRequest,
    RequestKind,
    Standing,
    decode_answers,
    decode_requests,
    encode_answers,
    encode_requests,
)

LONGEST = "\U0001f600" * 16383 + "abc"  # 65,535 bytes of UTF-8
EPOCH_MAX = (1 << 63) - 1


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_requests_and_answers_come_back(count: int) -> None:
    """In packets that a socket takes, with client ids of 0, 1, and the most bytes."""
    names = ["", "a", LONGEST, "é" * 100]
    requests = [
        OwnerRequest(at, RequestKind(at % 3), at * EPOCH_MAX // 5000, names[at % 4] if at < 8 else f"c{at}")
        for at in range(count)
    ]
    packets = list(encode_requests(requests))
    assert [each for packet in packets for each in decode_requests(packet)] == requests
    assert all(0 < len(packet) <= PACKET_BYTES_MAX for packet in packets)
    answers = [OwnerAnswer(at, at % 2 == 0, at, ("", "node", "n" * 63)[at % 3]) for at in range(count)]
    standing = Standing(EPOCH_MAX, True)
    packets = list(encode_answers(standing, answers))
    assert packets, "the standing is said in any case"
    assert {decode_answers(packet)[0] for packet in packets} == {standing}
    assert [each for packet in packets for each in decode_answers(packet)[1]] == answers
    assert all(len(packet) <= PACKET_BYTES_MAX for packet in packets)


def test_packets_that_are_cut_off() -> None:
    (packet,) = encode_requests(
        [OwnerRequest(1, RequestKind.TAKE, 2, "abc"), OwnerRequest(2, RequestKind.CLAIM, 0, "d")]
    )
    first = len(next(encode_requests([OwnerRequest(1, RequestKind.TAKE, 2, "abc")])))
    for end in range(1, len(packet)):
        if end != first:
            with pytest.raises((ValueError, struct.error)):
                list(decode_requests(packet[:end]))
    (answer,) = encode_answers(Standing(1, False), [OwnerAnswer(1, True, 5, "node")])
    for end in range(len(answer)):
        if end != 9:  # the standing alone
            with pytest.raises((ValueError, struct.error)):
                decode_answers(answer[:end])
    with pytest.raises(ValueError, match="9 is not a valid RequestKind"):
        list(decode_requests(packet[:8] + b"\x09" + packet[9:]))
    with pytest.raises(struct.error):
        decode_answers(b"\0" * 8)
