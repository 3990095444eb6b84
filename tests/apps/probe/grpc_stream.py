"""`serve PORT` echoes every message of a stream. `check HOST PORT` streams: many messages, one of 100 MB, and one
message after the other until /tmp/stop exists. Without generated code: messages are bytes."""

import concurrent.futures
import hashlib
import json
import os
import sys
import time

import grpc

METHOD = "Echo"
SERVICE = "probe.Echo"
# As every application sets that sends large messages; the default is 4 MiB.
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
MANY = 10_000


def serve(port):
    def echo(requests, _context):
        yield from requests

    handler = grpc.stream_stream_rpc_method_handler(echo)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    if server.add_insecure_port(f"0.0.0.0:{port}") == 0:
        sys.exit("the port is taken")
    server.start()
    print("SERVING", flush=True)
    server.wait_for_termination()


def many(stream):
    messages = [i.to_bytes(4, "big") * (1 + i % 64) for i in range(MANY)]
    begin = time.monotonic()
    got = list(stream(iter(messages)))
    if got != messages:
        sys.exit(f"{len(got)} of {MANY} messages came back, or others than were sent")
    return MANY / (time.monotonic() - begin)


def large(stream):
    message = os.urandom(100_000_000)
    begin = time.monotonic()
    got = list(stream(iter([message])))
    if [hashlib.sha256(m).digest() for m in got] != [hashlib.sha256(message).digest()]:
        sys.exit("the large message came back changed")
    return time.monotonic() - begin


def standing(stream):
    """One stream; the next message is sent when the last one is back."""
    back, sent, gap = 0, 0, 0.0

    def requests():
        nonlocal sent
        while not os.path.exists("/tmp/stop"):
            while back < sent:
                time.sleep(0.001)
            sent += 1
            yield sent.to_bytes(8, "big")
            time.sleep(0.02)

    begin = time.monotonic()
    for message in stream(requests()):
        now = time.monotonic()
        back += 1
        if int.from_bytes(message, "big") != back:
            sys.exit(f"message {back} was {message!r}")
        gap, begin = max(gap, now - begin), now
        if back == 10:
            print("STANDING", flush=True)
    if back != sent:
        sys.exit(f"{back} of {sent} messages came back")
    return back, gap


def check(host, port):
    with grpc.insecure_channel(f"{host}:{port}", options=OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(60)
        stream = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        rate = many(stream)
        seconds = large(stream)
        messages, gap = standing(stream)
    result = {"rate": rate, "large": seconds, "messages": messages, "gap": gap}
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    {"serve": serve, "check": check}[sys.argv[1]](*sys.argv[2:])
