"""Strangers on every socket, full discs, too little memory, rival coordinators, and what killed processes leave."""
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import tensors
import wire
from disc import Disc, limited
from fleet import DEADLINE_S, Fleet, short

WSYNC = sys.argv.pop()


class Case(unittest.TestCase):
    def push(self, fleet, path, *more):
        code, answer = fleet.ask("push", path, *more)
        self.assertEqual(code, 0, answer)
        return answer["result"]["version"]

    def verified(self, fleet, version, ranks=1):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual([r["version"] for r in answer["result"]["ranks"]], [version] * ranks)

    def stopped_whole(self, fleet, *engines):
        """No step of these engines ever read torn weights."""
        for engine in engines:
            code, said = fleet.stop(engine)
            self.assertEqual(code, 0, said)
            self.assertIn('"torn":0', said)

    def settled(self, fleet, version):
        """The status once heartbeats have told all of a publish that is done."""
        def told():
            sidecar, = fleet.ask("status")[1]["result"]["sidecars"]
            return sidecar["target"] == version and version in sidecar["staged"] and len(sidecar["staged"]) <= 2 and all(
                r["ready"] and r["version"] == version for r in sidecar["replicas"])
        fleet.until(told, f"{version} in the status")
        return fleet.state()

    def alive(self, *processes):
        self.assertEqual([p.poll() for p in processes], [None] * len(processes))


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def not_more(before, *processes):
    """A command that has just ended may have been counted before."""
    return all(descriptors(p) <= n for p, n in zip(processes, before))


def tcp_ports(process):
    """Loopback ports that this process listens on."""
    inodes = set()
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{process.pid}/fd/{name}"))
    ports = []
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.append(int(fields[1].split(":")[1], 16))
    return ports


# ---- what strangers say ----

NOISE = [b"\xff" * 4096, bytes(4096), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x00", bytes(range(256)) * 400]
HUGE = 2**32 - 1
MESSAGES = [  # whole messages that are wrong, by what is wrong with them
    wire.message(wire.STATUS, magic=1),
    wire.message(999),
    wire.message(0),
    wire.message(wire.STATUS, b"left over"),
    wire.message(wire.STATUS, capabilities=2**31),
    wire.message(wire.STATUS, length=HUGE),
    wire.message(wire.HELLO, b"\xff" * 200),
    wire.message(wire.HEARTBEAT, struct.pack("<QQIQI", 1, 0, 0, 0, HUGE)),
    wire.message(wire.STATUS, replica=b"x" * 129),
    wire.message(wire.STATUS)[:40],
    b"",
]
ENGINE_RANK = struct.pack("<IBIIBBBIQQ", 1, 1, 0, 1, 0, 0, 0, 0, 0, 0)
# Not on a GPU, takes no patches, is scrubbed, no controller, no capabilities.
HELLO_END = wire.text(b"") + b"\0" + wire.text(b"") + b"\0" + bytes(4)
ENGINE_HELLO = ENGINE_RANK + struct.pack("<I", 0) + HELLO_END  # without tensors
UNASKED = {  # what an engine answers, with values that make no sense
    27: struct.pack("<IQ", 9, 9) + wire.text(b"") + b"\0", 30: struct.pack("<Q", 2**64 - 1), 33: struct.pack("<Q", 2**64 - 1) + wire.text(b""),
    34: struct.pack("<IQQQ", 9, 9, 2**64 - 1, 0) + wire.text(b"no") + struct.pack("<IIQ", 0, 0, 0), 36: struct.pack("<IQ", 9, 9) + wire.text(b""), 38: b"",
    40: struct.pack("<IQI", 9, 9, 0) + wire.text(b"") + b"\0", 14: b"\x05" + wire.text(b"no"),
    62: struct.pack("<QIQQQ", 2**64 - 1, 9, 9, 2**64 - 1, 2**64 - 1) + wire.text(b"") + struct.pack("<I", 0)}


def whole_hello():
    """The EngineHello of an engine that holds the model of tensors.py."""
    shapes = [item for shard in tensors.SHARDS.values() for item in shard.items()]
    body = ENGINE_RANK + struct.pack("<I", len(shapes))
    for name, shape in shapes:
        body += wire.text(name.encode()) + struct.pack("<BIQQI", 14, 2, *shape, 0)
    return body + HELLO_END


def framed(message, size=None, fds=0):
    return struct.pack("<II", len(message) if size is None else size, fds) + message


ENGINE_LINK = [
    *NOISE,
    framed(b"", HUGE), framed(b"", 0), framed(b"", 64, HUGE), framed(wire.message(wire.STATUS), fds=65),
    framed(wire.message(wire.ENGINE_HELLO, ENGINE_HELLO)),  # no replica's name
    framed(wire.message(wire.ENGINE_HELLO, ENGINE_HELLO, replica=b"c", rank=9)),
    framed(wire.message(wire.ENGINE_HELLO, ENGINE_RANK + struct.pack("<I", HUGE), replica=b"c")),
    framed(wire.message(wire.HEARTBEAT, bytes(28))),
    *[framed(m) for m in MESSAGES],
]
PACKETS = [b"", b"\xff", b"\xff" * 80, b"\xff" * 4096, wire.data_frame(magic=1), wire.data_frame(protocol=2), wire.data_frame(0),
           wire.data_frame(2, size=4), wire.data_frame(4, size=HUGE), wire.data_frame(5, size=1 << 62), wire.data_frame(99),
           wire.data_frame() + b"more", wire.data_frame()[:40]]
STREAM = [*NOISE, wire.data_frame(magic=1), wire.data_frame(protocol=2), wire.data_frame(0), wire.data_frame(2, size=4),
          wire.data_frame(size=2**63), wire.data_frame(99)]
ZMTP = [*NOISE, b"", wire.GREETING[:10], wire.GREETING + b"\xff" * 100, wire.GREETING + wire.zmq_frame(b"\x05READY", 4) + b"\xff" * 64,
        wire.GREETING + b"\x06" + b"\xff" * 8, wire.GREETING.replace(b"NULL", b"CURV"), wire.GREETING.replace(b"\x03", b"\x09")]


class Strangers(Case):
    """A client that sends garbage to every socket: nothing changes, nobody ends, nothing leaks."""

    def greet_engine_link(self, path):
        for words in ENGINE_LINK:
            with wire.connect(path) as peer:
                with contextlib.suppress(OSError):  # it may have hung up already
                    peer.sendall(words)
                    peer.shutdown(socket.SHUT_WR)
                wire.until_closed(peer)
        with wire.connect(path) as peer:  # descriptors that nobody asked for
            with open(os.devnull, "rb") as file:
                socket.send_fds(peer, [b"\xff" * 64], [file.fileno()] * 20)
            wire.until_closed(peer)
        with wire.connect(path) as peer:  # another release is told why it is not understood
            peer.sendall(framed(wire.message(wire.ENGINE_HELLO, b"?", protocol=1)))
            said = wire.until_closed(peer)
            self.assertIn(b"protocol version 1", said)
            self.assertEqual(struct.unpack_from("<H", said, 8 + 6)[0], wire.ERROR)

    def attach_and_lie(self, path):
        """An engine by hand: it is let in, and says what nobody has asked."""
        with wire.connect(path) as peer:
            peer.sendall(framed(wire.message(wire.ENGINE_HELLO, whole_hello(), replica=b"z")))
            said = wire.receive(peer, 8 + 64)
            self.assertEqual(struct.unpack_from("<H", said, 8 + 6)[0], wire.ENGINE_WELCOME)
            for kind, payload in UNASKED.items():
                for request in (0, 1, 2**64 - 1):
                    peer.sendall(framed(wire.message(kind, payload, replica=b"z", request=request)))
            peer.sendall(framed(wire.message(wire.STATUS)))  # not for a sidecar: it hangs up
            # It has read all of them: it hangs up because of the last one, and for no other reason.
            self.assertIn(b"a sidecar does not accept the message Status of an engine", wire.until_closed(peer))

    def lie_as_a_sidecar(self, path):
        """A Hello that tells of a decision that was never taken, under the coordinator's own fence."""
        with wire.Dealer(path) as dealer:
            dealer.send(wire.message(wire.STATUS))
            dealer.until(wire.STATUS_REPLY)
            fence = dealer.fence
            hello = wire.text(b"liar") + wire.text(b"here") + struct.pack("<I", 1) + wire.text(b"") + struct.pack("<I", 0)  # without transports
            hello += struct.pack("<QQQQQQIQIIIQQQQQQQQQQQ", *fence, 99, 1, 1, 0, 0, 0, 0, 0, 0, 0, *fence, 99, 0) + wire.text(b"") + bytes(4)
            dealer.send(wire.message(wire.HELLO, hello, fence=fence))
            self.assertIn(b"'liar' cannot join: it reports decision 99", dealer.until(wire.ERROR))

    def greet_packets(self, path):
        for words in PACKETS:
            with wire.connect(path, socket.SOCK_SEQPACKET) as peer:
                with contextlib.suppress(OSError):
                    peer.send(words)
                    peer.shutdown(socket.SHUT_WR)
                wire.until_closed(peer)
        with wire.connect(path, socket.SOCK_SEQPACKET) as peer:
            with open(os.devnull, "rb") as file:
                socket.send_fds(peer, [wire.data_frame(5, size=1)], [file.fileno()] * 3)
            wire.until_closed(peer)

    def greet_data_port(self, port):
        for words in STREAM:
            with wire.connect(("127.0.0.1", port)) as peer:
                with contextlib.suppress(OSError):  # it may have hung up already
                    peer.sendall(words)
                    peer.shutdown(socket.SHUT_WR)
                wire.until_closed(peer)

    def greet_control(self, path):
        for words in ZMTP:
            with wire.connect(path) as peer:
                with contextlib.suppress(OSError):  # it may have hung up already
                    peer.sendall(words)
                    peer.shutdown(socket.SHUT_WR)
                wire.until_closed(peer)
        with wire.Dealer(path) as dealer:
            for words in MESSAGES:
                dealer.send(words)
            dealer.send(b"two", b"parts")
            dealer.send(b"")
        with wire.Dealer(path) as dealer:
            dealer.send(wire.message(wire.STATUS, protocol=1))  # told why
            self.assertIn(b"protocol version 1", dealer.until(wire.ERROR))
            dealer.send(wire.message(wire.STATUS))  # and still served
            self.assertTrue(dealer.until(wire.STATUS_REPLY))

    def silent(self, fleet, host_socket, ports):
        """Connections that say a half and then nothing; they stay open."""
        half = framed(wire.message(wire.ENGINE_HELLO, ENGINE_HELLO, replica=b"c"))[:50]
        peers = []
        for path, words in ((os.path.join(fleet.run_dir, "s0.engines"), half), (os.path.join(fleet.run_dir, "control"), wire.GREETING[:20]),
                            (os.path.join(fleet.run_dir, "s0.control"), wire.GREETING + b"\x04\x20half"),
                            *((("127.0.0.1", port), wire.data_frame()[:30]) for port in ports)):
            peers.append(wire.connect(path))
            peers[-1].sendall(words)
            peers.append(wire.connect(path))  # and one that says nothing at all
        peers.append(wire.connect(host_socket, socket.SOCK_SEQPACKET))
        return peers

    def test_garbage_on_every_socket(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            sidecar, engines = fleet.sidecar("s0")
            engine = fleet.engine(engines, "a", one)
            trainer = fleet.start("trainer")
            for path in (one, two, one):
                version = self.push(fleet, path)
            status = self.settled(fleet, version)
            before = [descriptors(p) for p in (sidecar, trainer, engine)]
            before[0] += 1  # it watches the process of engines that it has refused, which is this one, under whatever names
            host_socket = os.path.join(fleet.run_dir, "trainer-host.sock")
            ports = tcp_ports(trainer) + tcp_ports(sidecar)
            self.assertEqual(len(ports), 2)

            for _ in range(2):
                self.greet_engine_link(engines)
                self.greet_packets(host_socket)
                for port in ports:
                    self.greet_data_port(port)
                for name in ("control", "s0.control"):
                    self.greet_control(os.path.join(fleet.run_dir, name))
                self.lie_as_a_sidecar(os.path.join(fleet.run_dir, "control"))
            self.alive(sidecar, trainer, engine)
            code, answer = fleet.state()
            for each in answer["result"]["sidecars"]:  # an engine that was refused is reported as absent
                each["replicas"] = [r for r in each["replicas"] if "was refused: " not in r["reason"]]
            self.assertEqual((code, answer), status)
            self.verified(fleet, version)

            self.attach_and_lie(engines)  # leaves a replica that is absent
            self.alive(sidecar, trainer, engine)
            peers = self.silent(fleet, host_socket, ports)
            version = self.push(fleet, two)
            self.verified(fleet, version)
            wire.until_closed(peers[0])  # an engine has a deadline for its hello
            for peer in peers:
                peer.close()
            for path in (one, two, one, two):
                version = self.push(fleet, path)
            self.verified(fleet, version)
            fleet.until(lambda: not_more(before, sidecar, trainer, engine), "no more descriptors than before")
            self.stopped_whole(fleet, engine)


# ---- discs ----

def content(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


class FullDisc(Case):
    """Each ends with a clear error; nothing is acted upon that is not on disc."""

    def test_a_disc_without_room_stops_no_update(self):
        """A record is written into the place of an older one."""
        with Fleet(WSYNC) as fleet, Disc(fleet.path("disc")) as sidecars, Disc(fleet.path("trainers")) as trainers:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            _, engines = fleet.sidecar("s0", "--set", f"state_dir={sidecars.directory}")
            engine = fleet.engine(engines, "a", one)
            fleet.start("trainer", "--set", f"state_dir={trainers.directory}")
            self.push(fleet, one)
            sidecars.fill()
            trainers.fill()
            for checkpoint in two, one, two:
                version = self.push(fleet, checkpoint)
                self.verified(fleet, version)
            self.assertEqual(sidecars.names(), ["s0.lock", "s0.record"])
            self.assertEqual(trainers.names(), ["coordinator.decisions", "coordinator.lock"])
            self.stopped_whole(fleet, engine)

    def test_a_decision_that_cannot_be_stored_is_not_acted_upon(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            sidecar, engines = fleet.sidecar("s0")
            engine = fleet.engine(engines, "a", one)
            trainer = fleet.start("trainer")
            first = self.push(fleet, one)
            records = os.path.join(fleet.environment["WSYNC_STATE_DIR"], "default")
            names, record = sorted(os.listdir(records)), content(records, "s0.record")
            with limited(sidecar, resource.RLIMIT_FSIZE, 0):
                code, answer = fleet.ask("push", two)
                self.assertEqual(code, 1, answer)
                for word in ("s0.record", "could not be written", "File too large"):
                    self.assertIn(word, answer["result"]["reason"])
                # As it was: on disc, in the sidecar, in the engine.
                self.assertEqual((sorted(os.listdir(records)), content(records, "s0.record")), (names, record))
                code, answer = fleet.ask("status", address=f"ipc://{fleet.run_dir}/s0.control")
                self.assertEqual(answer["result"]["target"], first, answer)
                self.verified(fleet, first)
            third = self.push(fleet, two)
            self.verified(fleet, third)
            self.assertNotEqual(content(records, "s0.record"), record)
            self.alive(sidecar, trainer, engine)
            self.stopped_whole(fleet, engine)

    def test_a_claim_that_a_sidecar_cannot_store(self):
        with Fleet(WSYNC) as fleet, Disc(fleet.path("disc")) as disc:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0", "--set", f"state_dir={disc.directory}")
            engine = fleet.engine(engines, "a", one)
            disc.fill()
            trainer = fleet.start("trainer", "--set", f"deadlines.publish={short(2000)}")
            code, answer = fleet.ask("push", one)
            self.assertEqual((code, answer["error"]["code"]), (3, "deadline"), answer)
            for word in ("0 of at least 1 sidecars", "'s0'", "fence epoch 1", "s0.record", "No space left on device"):
                self.assertIn(word, answer["error"]["message"])
            self.assertEqual(disc.names(), ["s0.lock"])
            disc.empty()
            fleet.until_ready(self.push(fleet, one), "a")
            self.alive(trainer)
            self.stopped_whole(fleet, engine)

    def test_an_epoch_that_a_coordinator_cannot_store(self):
        with Fleet(WSYNC) as fleet, Disc(fleet.path("disc")) as disc:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.engine(engines, "a", one)
            state = os.listdir(fleet.environment["WSYNC_STATE_DIR"])
            disc.fill()
            for command in (["trainer"], ["trainer", "--checkpoint", one], ["push", one]):
                done = subprocess.run([WSYNC, *command], env=dict(fleet.environment, WSYNC_STATE_DIR=disc.directory),
                                      text=True, capture_output=True, timeout=DEADLINE_S)
                said = [line for line in done.stderr.splitlines() if line.startswith(f"wsync {command[0]}: ")]
                self.assertEqual((done.returncode, len(said)), (1, 1), done.stderr)
                for word in ("fleet 'default'", "coordinator.lock", "No space left on device"):
                    self.assertIn(word, said[0])
                self.assertEqual(disc.names(), [])
                self.assertEqual(os.listdir(fleet.environment["WSYNC_STATE_DIR"]), state)  # the sidecar obeyed nobody
            disc.empty()
            fleet.start("trainer", "--set", f"state_dir={disc.directory}")
            self.verified(fleet, self.push(fleet, one))
            self.assertEqual(disc.names(), ["coordinator.decisions", "coordinator.lock"])
            self.stopped_whole(fleet, engine)

    def test_a_trace_that_cannot_be_written(self):
        with Fleet(WSYNC) as fleet, Disc(fleet.path("disc")) as disc:
            one = tensors.make(fleet.path("one"), 1)
            trace = os.path.join(disc.directory, "trace")
            log = open(fleet.path("log"), "w+", encoding="utf-8")
            with log:
                sidecar = subprocess.Popen([WSYNC, "sidecar", "--set", "name=s0", "--set", f"trace_file={trace}", "--set",
                                            "devices.kind=separate"], env=fleet.environment, stdout=subprocess.PIPE, stderr=log)
                fleet.processes.append(sidecar)
                engines = os.path.join(fleet.run_dir, "s0.engines")
                fleet.until(lambda: os.path.exists(engines), "the sidecar's socket")
                engine = fleet.engine(engines, "a", one)
                fleet.start("trainer")
                self.verified(fleet, self.push(fleet, one))
                disc.fill()
                sidecar.send_signal(signal.SIGTERM)
                self.assertEqual(sidecar.wait(timeout=DEADLINE_S), 0)
                log.seek(0)
                said = log.read()
            for word in ("trace.json", "trace.svg", "No space left on device"):
                self.assertIn(word, said)
            self.assertEqual(disc.names(), [])
            self.stopped_whole(fleet, engine)

    def test_a_checkpoint_that_does_not_fit(self):
        with Fleet(WSYNC) as fleet, Disc(fleet.path("disc")) as disc:
            done = subprocess.run([WSYNC, "make-checkpoint", os.path.join(disc.directory, "made"), "--size", "1MiB"],
                                  env=fleet.environment, text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn("No space left on device", done.stderr)
            self.assertIn(os.path.join(disc.directory, ""), done.stderr)
            self.assertEqual(disc.names(), [])


# ---- memory ----

def address_space(process, more_bytes):
    """The process may map only so much more."""
    with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    return limited(process, resource.RLIMIT_AS, now + more_bytes)


class LittleMemory(Case):
    """A publish for which there is no memory fails with a sentence; the old version goes on being served."""

    def test_host_memory_that_is_too_small(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)  # 16 MiB each
            sidecar, engines = fleet.sidecar("s0")
            engine = fleet.engine(engines, "a", one)
            fleet.start("trainer")
            first = self.push(fleet, one)
            self.assertEqual(fleet.stop(sidecar)[0], 0)
            fleet.sidecar("s0", "--set", "host_memory=20MiB")
            fleet.event(engine, "attached")
            fleet.until(lambda: "a" in fleet.replicas() and fleet.replicas()["a"]["version"] == first, "the engine at its sidecar")
            code, answer = fleet.ask("push", two)
            self.assertEqual(code, 1, answer)
            arena = 16 * 2**20
            reason = answer["result"]["reason"]
            for word in ("'s0'", "2 versions of", "host_memory allows 20971520", "raise host_memory"):
                self.assertIn(word, reason)
            needed = int(reason.split(" need ")[1].split()[0])
            self.assertTrue(2 * arena <= needed < 3 * arena, reason)
            self.assertEqual(fleet.replicas()["a"]["version"], first)
            self.stopped_whole(fleet, engine)

    def test_memory_that_the_system_does_not_give(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            sidecar, engines = fleet.sidecar("s0", "--set", "transport=tcp")  # has arenas of its own
            engine = fleet.engine(engines, "a", one)
            trainer = fleet.start("trainer")
            first = self.push(fleet, one)
            with address_space(trainer, 12 * 2**20):
                code, answer = fleet.ask("push", two)
                self.assertEqual((code, answer["error"]["code"]), (1, "resource_exhausted"), answer)
                for word in ("snapshot of version", "map 1", "bytes of an arena", "Cannot allocate memory"):
                    self.assertIn(word, answer["error"]["message"])
            self.verified(fleet, first)
            with address_space(sidecar, 12 * 2**20):
                code, answer = fleet.ask("push", two)
                self.assertEqual(code, 1, answer)
                for word in ("'s0'", "bytes of an arena", "Cannot allocate memory"):
                    self.assertIn(word, answer["result"]["reason"])
            self.verified(fleet, first)
            self.alive(sidecar, trainer, engine)
            self.verified(fleet, self.push(fleet, two))
            self.stopped_whole(fleet, engine)


# ---- coordinators ----

class Rivals(Case):
    def sidecar_of(self, fleet, address):
        """(Re)starts the sidecar with another coordinator."""
        for process in [p for p in fleet.processes if "sidecar" in p.args and p.poll() is None]:
            self.assertEqual(fleet.stop(process)[0], 0)
        return fleet.sidecar("s0", "--set", f"coordinator={address}")

    def test_a_take_over_that_fails_leaves_the_coordinator_its_addresses(self):
        """An address that cannot be taken over is bound before any other is claimed."""
        with Fleet(WSYNC) as fleet, socket.create_server(("127.0.0.1", 0)) as held:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.engine(engines, "a", one)
            trainer = fleet.start("trainer")
            self.verified(fleet, self.push(fleet, one))
            second = fleet.start("trainer", "--take-over", "--set", f"data_address=tcp://127.0.0.1:{held.getsockname()[1]}")
            self.assertEqual(second.wait(timeout=DEADLINE_S), 1)
            with open(second.log_path, encoding="utf-8") as log:
                self.assertIn("data_address", log.read())
            self.verified(fleet, self.push(fleet, one))
            self.stopped_whole(fleet, engine)
            self.assertEqual(fleet.stop(trainer)[0], 0)

    def test_an_old_fence_changes_nothing(self):
        with Fleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            old_address, new_address = (f"ipc://{fleet.path(n)}/control" for n in ("old", "new"))
            coordinator = lambda name, *more: fleet.start("trainer", "--set", f"run_dir={fleet.path(name)}", "--set",
                                                          f"state_dir={fleet.path(name + '-state')}", *more)
            _, engines = self.sidecar_of(fleet, old_address)
            engine = fleet.engine(engines, "a", one)
            old = coordinator("old")
            code, answer = fleet.ask("push", one, address=old_address)
            self.assertEqual((code, answer["result"]["version"]), (0, "1.1"), answer)

            self.sidecar_of(fleet, new_address)
            fleet.event(engine, "attached")
            coordinator("new")
            code, answer = fleet.ask("push", two, address=new_address)
            self.assertEqual((code, answer["result"]["version"]), (0, "2.2"), answer)

            # The sidecar comes back to the old one: it is told, stops, and changes nothing.
            _, engines = self.sidecar_of(fleet, old_address)
            fleet.event(engine, "attached")
            self.assertEqual(old.wait(timeout=DEADLINE_S), 1)
            code, answer = fleet.ask("status", address=f"ipc://{fleet.run_dir}/s0.control")
            self.assertEqual((answer["result"]["fence_epoch"], answer["result"]["target"]), (2, "2.2"), answer)
            # One that takes over claims above it, and publishes.
            coordinator("old", "--take-over")
            fleet.until(lambda: fleet.ask("status", address=old_address)[1].get("result", {}).get("fence_epoch") == 3, "epoch 3")
            code, answer = fleet.ask("push", one, address=old_address)
            self.assertEqual((code, answer["result"]["version"]), (0, "3.3"), answer)
            code, answer = fleet.ask("verify", address=old_address)
            self.assertEqual((code, [r["version"] for r in answer["result"]["ranks"]]), (0, ["3.3"]), answer)
            self.stopped_whole(fleet, engine)

    def test_words_of_a_replaced_coordinator(self):
        """A coordinator by hand: what it says under a fence below the stored one is answered with the fence, no more."""
        with Fleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.engine(engines, "a", one)
            trainer = fleet.start("trainer")
            for _ in range(2):
                version = self.push(fleet, one)
            self.assertEqual((version, fleet.stop(trainer)[0]), ("1.2", 0))
            os.mkdir(fleet.path("fake"), mode=0o700)
            path = os.path.join(fleet.path("fake"), "control")
            with wire.Router(path) as fake:
                sidecar, _ = self.sidecar_of(fleet, f"ipc://{path}")
                fleet.event(engine, "attached")
                fake.accept()
                fake.until(wire.HELLO)
                own = fake.port.fence[3:]  # the fleet's id
                record = content(fleet.environment["WSYNC_STATE_DIR"], "default", "s0.record")
                back = struct.pack("<QBIQIIQBBIIQQQQQQQQI", 99, 1, 1, 1, 1, 1, 2, 0, 0, 1000, 1000, *[0] * 9)  # to 1.1; 1.2 is withdrawn
                for kind, payload in ((wire.DECIDE, back), (wire.WELCOME, struct.pack("<II", 0, 0)),
                                      (wire.ANNOUNCE, struct.pack("<IQQQIQQQQ", 1, 3, 0, 0, 0, 0, 0, 2**20, 2**20))):
                    fake.send(wire.message(kind, payload, fence=(0, 2**64 - 1, 2**64 - 1, *own)))
                    said = fake.until(wire.ERROR)
                    self.assertEqual(said[0], 6, said)  # fenced
                    self.assertIn(b"'s0' follows fence epoch 1 and refuses the message of epoch 0", said)
                    # Of another fleet it is refused, whatever its epoch.
                    fake.send(wire.message(kind, payload, fence=(2**31, 1, 1, 9, 9)))
                    said = fake.until(wire.ERROR)
                    self.assertIn(b"'s0' belongs to fleet %016x%016x and refuses the coordinator of fleet %016x%016x" % (*own, 9, 9), said)
                for words in MESSAGES:
                    fake.send(words)
                fake.send(b"two", b"parts")
                fake.send(wire.message(wire.DECIDE, back[:-3], fence=(9, 9, 9, *own)))  # too short: not even its fence counts
                address = f"ipc://{fleet.run_dir}/s0.control"
                code, answer = fleet.ask("status", address=address)
                self.assertEqual((answer["result"]["fence_epoch"], answer["result"]["target"], answer["result"]["withdrawn"]),
                                 (1, "1.2", []), answer)
                self.assertEqual(content(fleet.environment["WSYNC_STATE_DIR"], "default", "s0.record"), record)
                self.alive(sidecar, engine)
            self.stopped_whole(fleet, engine)

    def test_two_at_one_address(self):
        with Fleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0")
            engine = fleet.engine(engines, "a", one)
            fleet.start("trainer")
            version = self.push(fleet, one)
            status = self.settled(fleet, version)
            for more in ([], ["--set", f"listen=ipc://{fleet.run_dir}/other"]):
                second = subprocess.run([WSYNC, "trainer", *more], env=fleet.environment, text=True, capture_output=True,
                                        timeout=DEADLINE_S)
                self.assertEqual((second.returncode, len(second.stderr.splitlines())), (3, 1), second.stderr)
                self.assertRegex(second.stderr, rf"is held by process {fleet.processes[-1].pid}: stop it, or .*; if that process hangs, "
                                                r"start a trainer with --take-over \(`take_over: true` in its settings\)")
            self.assertEqual(fleet.state(), status)
            self.verified(fleet, version)
            self.stopped_whole(fleet, engine)


# ---- what is left behind ----

def named_memory(process):
    """Files in /dev/shm that a process has open or mapped. The folder itself cannot be compared: other tests use it meanwhile."""
    found = set()
    with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
        found.update(line.split(maxsplit=5)[5].strip() for line in maps if "/dev/shm/" in line)
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{process.pid}/fd/{name}"))
    return sorted(f for f in found if f.startswith("/dev/shm/"))


def identity(path):
    """What tells a file from another one that has taken its place; nothing when there is none."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        return status.st_ino, status.st_ctime_ns
    return None


class LeftBehind(Case):
    def test_killed_processes_leave_what_the_next_start_takes_away(self):
        with Fleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            fleet.sidecar("s1")  # will not be started again: what it leaves stays
            gather = ("--set", "deadlines.gather=2s")  # s1 stands in the record and does not come back
            processes = []
            for sidecars in (2, 1):
                sidecar, engines = fleet.sidecar("s0", "--set", "devices.kind=separate")
                engine = fleet.engine(engines, "a", one)
                trainer = fleet.start("trainer", "--set", f"min_sidecars={sidecars}", *gather)
                version = self.push(fleet, one)
                self.verified(fleet, version)
                processes = [p for p in fleet.processes if p.poll() is None]
                for process in processes:
                    self.assertEqual(named_memory(process), [])  # what outlives a killed process
                for process in processes:
                    process.kill()
                for process in processes:
                    process.wait()
                left = sorted(os.listdir(fleet.run_dir))
                for name in ("control", "s0.control", "s0.engines", "s1.control", "s1.engines", "trainer-host.sock"):
                    self.assertIn(name, left)
                del sidecar, trainer, engine
            were = {n: identity(os.path.join(fleet.run_dir, n)) for n in left}
            sidecar, engines = fleet.sidecar("s0")
            fleet.until(lambda: identity(engines) not in (None, were["s0.engines"]), "the socket of the new sidecar")
            engine = fleet.engine(engines, "a", one)
            trainer = fleet.start("trainer", *gather)
            self.verified(fleet, self.push(fleet, one))
            for name in ("s1.control", "s1.engines"):
                self.assertEqual(identity(os.path.join(fleet.run_dir, name)), were[name])
            self.stopped_whole(fleet, engine)
            for process in (trainer, sidecar):
                self.assertEqual(fleet.stop(process)[0], 0)
            # Those that end in order take their sockets away; lock files stay, they are held no more.
            self.assertEqual(sorted(n for n in os.listdir(fleet.run_dir) if not n.endswith(".lock")), ["s1.control", "s1.engines", "s1.http"])

    def test_descriptors_do_not_grow(self):
        for settings, options in (([], []), (["--set", "devices.kind=separate"], []), (["--set", "transport=tcp"], ["--adopt"])):
            with self.subTest(settings=settings), Fleet(WSYNC) as fleet:
                paths = [tensors.make(fleet.path(name), seed) for seed, name in enumerate(("one", "two"))]
                sidecar, engines = fleet.sidecar("s0", *settings)
                engine = fleet.engine(engines, "a", paths[0], *options)
                trainer = fleet.start("trainer")
                for number in range(3):
                    version = self.push(fleet, paths[number % 2])
                # One more arena, of two descriptors, may be made once when an engine lets go late.
                before = [descriptors(p) + 2 for p in (sidecar, trainer, engine)]
                for number in range(5):
                    version = self.push(fleet, paths[number % 2])
                self.verified(fleet, version)
                fleet.until(lambda: not_more(before, sidecar, trainer, engine), "no more descriptors than before")
                self.stopped_whole(fleet, engine)


if __name__ == "__main__":
    unittest.main()
