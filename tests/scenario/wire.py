"""What a stranger can say to the sockets of wsync: messages, frames and packets by hand, right and wrong."""
import os
import socket
import struct

MAGIC, PROTOCOL = 0x434E5357, 19
HELLO, WELCOME, ANNOUNCE, DECIDE, HEARTBEAT, ERROR = 1, 2, 3, 8, 12, 14
STATUS, STATUS_REPLY, ENGINE_HELLO, ENGINE_WELCOME = 22, 23, 24, 25
DATA_MAGIC, DATA_PROTOCOL, DATA_GET = 0x54425357, 3, 1
PATIENCE_S = 60


def message(kind, payload=b"", *, magic=MAGIC, protocol=PROTOCOL, length=None, fence=(0, 0, 0, 0, 0), request=7, replica=b"",
            rank=0, capabilities=0):
    """One encoded message: envelope, replica's name, payload."""
    return struct.pack("<IHHIIQQQQQQQII", magic, protocol, kind, len(payload) if length is None else length, rank, *fence,
                       0, request, len(replica), capabilities) + replica + payload


def data_frame(kind=DATA_GET, *, magic=DATA_MAGIC, protocol=DATA_PROTOCOL, size=0):
    """The header of a frame of the data transport, for a version that is not offered."""
    return struct.pack("<IHHQQQIIQQQQQIIQQ", magic, protocol, kind, 1, 0, 0, 1, 0, 999, 0, size, 0, 0, 0, 0, 0, 0)


def text(value):
    return struct.pack("<I", len(value)) + value


def connect(address, kind=socket.SOCK_STREAM):
    """A connection to a path or to (host, port); the caller closes it."""
    peer = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, kind)
    peer.settimeout(PATIENCE_S)
    peer.connect(address)
    return peer


def until_closed(peer):
    """Everything that the other end says before it hangs up."""
    said = b""
    try:
        while part := peer.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def receive(peer, size):
    got = b""
    while len(got) < size:
        part = peer.recv(size - len(got))
        if not part:
            raise ConnectionResetError
        got += part
    return got


# ---- ZeroMQ's own protocol (ZMTP 3.0, no security), enough for a DEALER ----

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def zmq_frame(body, flags=0):
    if len(body) < 256:
        return struct.pack("BB", flags, len(body)) + body
    return struct.pack(">BQ", flags | 2, len(body)) + body


class Port:
    """One side of a ZeroMQ connection, so that any bytes can be sent."""

    def __init__(self, peer, kind):
        self.peer = peer
        self.fence = (0, 0, 0, 0, 0)
        self.peer.sendall(GREETING)
        receive(self.peer, 64)
        identity = b"stranger-%016x" % int.from_bytes(os.urandom(8), "little")
        ready = b"\x05READY"
        for name, value in ((b"Socket-Type", kind), (b"Identity", identity)):
            ready += bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
        self.peer.sendall(zmq_frame(ready, 4))
        self.receive(4)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peer.close()

    def send(self, *parts):
        for number, part in enumerate(parts):
            self.peer.sendall(zmq_frame(part, 0 if number + 1 == len(parts) else 1))

    def receive(self, flags=0):
        """The next frame of a message (flags 0) or command (4)."""
        while True:
            found = receive(self.peer, 1)[0]
            size = struct.unpack(">Q", receive(self.peer, 8))[0] if found & 2 else receive(self.peer, 1)[0]
            body = receive(self.peer, size)
            if found & 4 == flags:
                return body

    def until(self, kind):
        """The payload of the next message of that kind; others (heartbeats) are passed over. Notes its fence and capabilities."""
        while True:
            body = self.receive()
            if struct.unpack_from("<H", body, 6)[0] == kind:
                self.fence = struct.unpack_from("<QQQQQ", body, 16)
                self.capabilities = struct.unpack_from("<I", body, 76)[0]
                return body[80:]


class Dealer(Port):
    def __init__(self, path):
        super().__init__(connect(path), b"DEALER")


class Router:
    """A coordinator's side of the control socket, for one peer."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(PATIENCE_S)
        self.listener.bind(path)
        self.listener.listen()
        self.port = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        if self.port:
            self.port.peer.close()

    def accept(self):
        peer, _ = self.listener.accept()
        peer.settimeout(PATIENCE_S)
        self.port = Port(peer, b"ROUTER")

    def send(self, *parts):
        self.port.send(*parts)

    def until(self, kind):
        return self.port.until(kind)
