"""sendmmsg and recvmmsg, which Python does not have."""

import ctypes
import socket
import struct


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.POINTER(Vector)),
                ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("pad", ctypes.c_int), ("length", ctypes.c_uint32)]


LIBC = ctypes.CDLL(None, use_errno=True)
MSG_WAITFORONE = 0x10000


def address(name):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", name[1]) + socket.inet_aton(name[0]) + bytes(8)


def vector(buffers, names):
    headers = (Header * len(buffers))()
    for header, buffer, name in zip(headers, buffers, names):
        header.iov = ctypes.pointer(Vector(ctypes.addressof(buffer), ctypes.sizeof(buffer)))
        header.iovlen = 1
        if name is not None:
            header.name, header.namelen = ctypes.addressof(name), ctypes.sizeof(name)
    return headers


def send(s, datagrams, name=None):
    buffers = [ctypes.create_string_buffer(d, len(d)) for d in datagrams]
    names = [None if name is None else ctypes.create_string_buffer(address(name), 16) for _ in datagrams]
    return checked(LIBC.sendmmsg(s.fileno(), vector(buffers, names), len(buffers), 0))


def receive(s, most):
    buffers = [ctypes.create_string_buffer(2048) for _ in range(most)]
    names = [ctypes.create_string_buffer(16) for _ in range(most)]
    headers = vector(buffers, names)
    s.setblocking(True)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3, 0))
    count = checked(LIBC.recvmmsg(s.fileno(), headers, most, MSG_WAITFORONE, None))
    got = []
    for header, buffer, name in list(zip(headers, buffers, names))[:count]:
        whom = (socket.inet_ntoa(name.raw[4:8]), struct.unpack("!H", name.raw[2:4])[0])
        got.append((buffer.raw[:header.length], whom))
    return got


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "mmsg")
    return result
