"""The bytes of which every one is known."""

import struct

SIZE = 65_521  # a prime: no loss or doubling of whole blocks goes unseen
PATTERN = b"".join(struct.pack("I", (i * 2654435761) & 0xFFFFFFFF) for i in range(SIZE // 4 + 1))[:SIZE]
TWICE = PATTERN * 2
PIECE = 64_000
PAUSE = 0.032


def piece(offset, size):
    start = offset % SIZE
    return TWICE[start:start + min(size, SIZE)]
