"""Programs that people run, as clients and as servers, beside each other in two pods."""

import asyncio
import http.server
import subprocess
import threading

from base import ECHO, Here, background, check, dial, echoes, expect, expect_one, needs_hooks, port, where

STREAMS, DATAGRAMS, WEB, WEB_ON_VIP, GO_SERVER = (port() for _ in range(5))
BODY = bytes(range(256)) * 4096  # 1 MiB


@background
def loop(_):
    """One event loop that serves streams and datagrams."""

    async def stream(reader, writer):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
        writer.close()

    class Datagrams(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, whom):
            self.transport.sendto(data, whom)

    ready = threading.Event()

    async def run():
        server = await asyncio.start_server(stream, Here.any, STREAMS)
        await asyncio.get_running_loop().create_datagram_endpoint(Datagrams, (Here.any, DATAGRAMS))
        ready.set()
        await server.serve_forever()

    threading.Thread(target=asyncio.run, args=(run(),), daemon=True).start()
    ready.wait()


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("X-Client", self.client_address[0])
        self.end_headers()
        self.wfile.write(BODY)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@background
def web(vip):
    for host, number in ((Here.any, WEB), (vip, WEB_ON_VIP)):
        server = type("Web", (http.server.ThreadingHTTPServer,), {"address_family": Here.family})((host, number), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()


@background
def go_server(_):
    """Go listens with multipath TCP by default."""
    subprocess.Popen([Here.go, "serve", str(GO_SERVER)])


def at(number):
    return f"[{Here.peer}]:{number}" if ":" in Here.peer else f"{Here.peer}:{number}"


def says(words, given=b""):
    out = subprocess.run(words, input=given, capture_output=True, timeout=20)
    if out.returncode:
        raise AssertionError(f"{words[0]}: {out.returncode}: {out.stderr.decode()[-300:]}")
    return out.stdout


@check
def asyncio_streams_and_datagrams():
    async def one(i):
        reader, writer = await asyncio.open_connection(Here.peer_names[0], STREAMS)
        expect(where(writer.get_extra_info("peername")), (Here.peer, STREAMS))
        writer.write(b"%d" % i * 1000)
        writer.write_eof()
        expect(await reader.read(-1), b"%d" % i * 1000)
        writer.close()
        await writer.wait_closed()

    class Client(asyncio.DatagramProtocol):
        def __init__(self):
            self.got = asyncio.get_running_loop().create_future()

        def datagram_received(self, data, whom):
            self.got.set_result((data, where(whom)))

    async def run():
        await asyncio.gather(*(one(i) for i in range(50)))
        transport, client = await asyncio.get_running_loop().create_datagram_endpoint(
            Client, remote_addr=(Here.peer, DATAGRAMS))
        transport.sendto(b"x")
        expect(await asyncio.wait_for(client.got, 3), (b"x", (Here.peer, DATAGRAMS)))
        transport.close()
        try:
            await asyncio.open_connection(Here.nobody, STREAMS)
            raise AssertionError("connected to nobody")
        except OSError:
            pass

    asyncio.run(run())


@check
@needs_hooks("client")
def curl_by_address_name_and_interface():
    for server in (at(WEB), f"{Here.peer_names[0]}:{WEB}", f"{Here.peer_names[1]}:{WEB_ON_VIP}"):
        expect(says(["curl", "-sS", "-m", "10", f"http://{server}/"]) == BODY, True)
    head = says(["curl", "-sS", "-m", "10", "--interface", "rl0", "-D", "-", "-o", "/dev/null", f"http://{at(WEB)}/"])
    expect(f"X-Client: {Here.own}".encode() in head, True)
    # One connection for many requests, then many connections at once.
    url = f"http://{at(WEB)}/?[1-20]"
    expect(len(says(["curl", "-sS", "-m", "20", url])), 20 * len(BODY))
    expect(len(says(["curl", "-sS", "-m", "20", "--parallel", url])), 20 * len(BODY))
    expect(says(["curl", "-sS", "-m", "10", "--data-binary", "@-", f"http://{at(WEB)}/"], BODY) == BODY, True)
    out = subprocess.run(["curl", "-sS", "-m", "5", f"http://{at(1)}/"], capture_output=True)
    expect_one(out.returncode, (7, 52, 56))  # refused, empty reply, reset


@check
def shells_and_their_tools():
    """bash opens it itself; nc and socat."""
    host, data = Here.peer, b"over the wire\n" * 1000
    script = 'exec 3<>/dev/tcp/$0/$1; printf "hi\\n" >&3; read -r line <&3; echo "$line"'
    expect(says(["bash", "-c", script, host, str(ECHO)]), b"hi\n")
    for words in (["nc", "-N", host, str(ECHO)], ["socat", "-t5", "-", f"TCP:{at(ECHO)}"]):
        expect(says(words, data) == data, True)


@check
def go_programs():
    """Their runtime has its own poller, resolver and, for listeners, multipath TCP."""
    for server in (at(ECHO), f"{Here.peer_names[0]}:{GO_SERVER}"):
        said = says([Here.go, "ask", server, at(1), at(DATAGRAMS)]).decode()
        expect(said.strip().endswith("fine"), True)
    for _ in range(20):
        with dial(GO_SERVER) as s:
            echoes(s)
