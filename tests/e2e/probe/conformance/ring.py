"""Just enough of io_uring to connect a socket with it, by system calls alone."""

import ctypes
import mmap
import os
import socket
import struct

SETUP, ENTER = 425, 426
CONNECT = 16
GETEVENTS = 1
ENTRY = 64


def connect(fd, address, port):
    """The completion's result: 0 or a negative errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(120)
    ring = libc.syscall(SETUP, 4, params)
    if ring < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    try:
        entries, completions = struct.unpack_from("II", params, 0)
        sq = struct.unpack_from("7I", params, 40)  # head tail mask entries flags dropped array
        cq = struct.unpack_from("5I", params, 80)  # head tail mask entries overflow; then cqes
        cqes = struct.unpack_from("I", params, 100)[0]
        size = max(sq[6] + entries * 4, cqes + completions * 16)
        rings = mmap.mmap(ring, size, flags=mmap.MAP_SHARED, offset=0)
        slots = mmap.mmap(ring, entries * ENTRY, flags=mmap.MAP_SHARED, offset=0x10000000)
        name = ctypes.create_string_buffer(
            struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address) + bytes(8), 16)
        slots[0:ENTRY] = struct.pack("=BBHiQQ", CONNECT, 0, 0, fd, 16, ctypes.addressof(name)).ljust(ENTRY, b"\0")
        struct.pack_into("I", rings, sq[6], 0)
        struct.pack_into("I", rings, sq[1], 1)
        if libc.syscall(ENTER, ring, 1, 1, GETEVENTS, None, 0) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        return struct.unpack_from("i", rings, cqes + 8)[0]
    finally:
        os.close(ring)
