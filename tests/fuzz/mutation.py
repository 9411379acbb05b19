"""Seeded random mutation: the same seed gives the same inputs, so that a find can be made again."""

from __future__ import annotations

import random

INTERESTING = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\0\0",
    b"\xff\xff",
    b"\x80\x00",
    b"\xff\xff\xff\x7f",
    b"#",
    b"/",
)


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    """One input made from one or two of the corpus by one to five changes."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 5)):
        at = rng.randint(0, len(data))
        change = rng.randrange(8)
        if change == 0 and data:
            data[at - 1] = rng.randrange(256)
        elif change == 1 and data:
            data[at - 1] ^= 1 << rng.randrange(8)
        elif change == 2:
            data[at:at] = rng.choice(INTERESTING)
        elif change == 3:
            data[at : at + rng.randint(1, 4)] = rng.choice(INTERESTING)
        elif change == 4:
            del data[at : at + rng.randint(1, 8)]
        elif change == 5:
            data[at:at] = data[at : at + rng.randint(1, 16)]
        elif change == 6:
            other = rng.choice(corpus)
            data[at:] = other[rng.randint(0, len(other)) :]
        else:
            data += rng.choice(corpus)
    if rng.random() < 0.5 and len(data) > 2:
        data[1] = min(len(data) - 2, 127)  # a remaining length that fits, or most inputs end at their second byte
    return bytes(data)
