"""Sidecars that engines, readers and adapters name instead of the path of a socket."""
import logging
import os
import pathlib
import signal
import socket
import threading
import time
import unittest
import unittest.mock

import wsync
from package_fleet import DEADLINE_S, PackageFleet, empty_like, equal, until, weights_of
from wsync import _sidecars
from wsync.vllm import settings as adapter_settings


class Named(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.enterContext(unittest.mock.patch.dict(os.environ, WSYNC_RUN_DIR=self.fleet.run_dir))

    def test_a_replica_and_a_reader_attach_by_the_name(self):
        self.fleet.sidecar("host0")
        held = empty_like(weights_of(0))
        self.fleet.serve(wsync.Replica("host0", "r0", held))
        with self.fleet.publisher() as publisher:
            publisher.publish(weights_of(1), step=1).wait(timeout=DEADLINE_S)
            equal(self, held, weights_of(1))
            with wsync.Reader("host0") as reader, reader.open(step=1, timeout=DEADLINE_S) as staged:
                equal(self, staged.tensors, weights_of(1))

    def test_a_path_is_used_as_it_is_and_needs_no_sidecar_yet(self):
        path = os.path.join(self.fleet.run_dir, "later.engines")
        for given in (path, pathlib.Path(path)):
            replica = wsync.Replica(given, "r0", empty_like(weights_of(0)))
            self.assertFalse(replica.status().attached)
            replica.close()
        self.fleet.serve(replica := wsync.Replica(path, "r0", empty_like(weights_of(0))))
        self.fleet.sidecar("later")
        until(lambda: replica.status().attached, "the sidecar")

    def test_a_sidecar_that_is_being_started_is_awaited(self):
        made = []
        thread = threading.Thread(target=lambda: made.append(wsync.Replica("host0", "r0", empty_like(weights_of(0)))))
        with unittest.mock.patch.object(_sidecars.engine_socket, "__kwdefaults__", {"wait_s": DEADLINE_S}), \
                self.assertLogs("wsync", logging.WARNING) as logged:
            thread.start()
            until(lambda: logged.output, "the line that says what is awaited")
            self.fleet.sidecar("host0")
            thread.join(DEADLINE_S)
        self.assertIn("no sidecar 'host0' listens at", logged.output[0])
        self.assertEqual(len(made), 1)
        self.fleet.serve(made[0])
        until(lambda: made[0].status().attached, "the sidecar")

    def refused(self, name, kind=wsync.NotFound):
        begin = time.monotonic()
        with self.assertRaises(kind) as caught:
            _sidecars.engine_socket(name, wait_s=0.1)
        if kind is wsync.NotFound:
            self.assertGreaterEqual(time.monotonic() - begin, 0.1)
        return caught.exception.sentence

    def test_a_name_that_no_sidecar_has(self):
        with self.assertRaises(LookupError):
            wsync.Replica("host0", "r0", empty_like(weights_of(0)))
        for said in (f"looked for {self.fleet.run_dir}/host0.engines", "there is no such socket", "no other sidecar runs there",
                     "`wsync sidecar --set name=host0`", "WSYNC_RUN_DIR"):
            self.assertIn(said, self.refused("host0"))
        left, _ = self.fleet.sidecar("left")
        self.fleet.sidecar("b")
        self.fleet.sidecar("a")
        self.assertIn("the sidecars that run there are a, b, left.", self.refused("host0"))
        left.send_signal(signal.SIGKILL)
        left.wait()
        self.assertIn("its socket is left over from a process that has ended; the sidecars that run there are a, b.",
                      self.refused("left"))

    def test_what_is_no_name(self):
        self.assertIn("expected its name", self.refused("", wsync.InvalidInput))
        self.assertIn("expected its name", self.refused(5, wsync.InvalidInput))
        self.assertIn("at most 107 bytes", self.refused("n" * 120, wsync.InvalidInput))
        with self.assertRaises(wsync.Error) as caught:
            wsync.Replica("./host0.engines", "r0", empty_like(weights_of(0)))
        self.assertIn("absolute", caught.exception.sentence)

    def test_the_directory_is_that_of_a_sidecar_without_a_configuration(self):
        for environment in ({"XDG_RUNTIME_DIR": self.fleet.directory}, {"XDG_RUNTIME_DIR": self.fleet.directory, "WSYNC_RUN_DIR": "auto"}):
            own = {key: value for key, value in self.fleet.environment.items() if key != "WSYNC_RUN_DIR"} | environment
            with unittest.mock.patch.dict(os.environ, own, clear=True):
                self.fleet.environment = own
                self.fleet.run_dir = os.path.join(self.fleet.directory, "wsync")
                process, path = self.fleet.sidecar("host0")
                self.assertEqual(_sidecars.engine_socket("host0", wait_s=DEADLINE_S), path)
                process.terminate()
                process.wait(DEADLINE_S)
        with unittest.mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": "relative"}):
            del os.environ["WSYNC_RUN_DIR"]
            self.assertEqual(_sidecars.run_dir(), f"/tmp/wsync-{os.getuid()}")

    def test_an_adapter_takes_the_name_from_the_environment(self):
        self.assertIn("no sidecar has one there", self.adapter_refused())
        _, path = self.fleet.sidecar("host0")
        self.assertEqual(adapter_settings.read(8000).socket, path)
        _, other = self.fleet.sidecar("host1")
        self.assertIn("several sidecars have one: host0, host1", self.adapter_refused())
        with unittest.mock.patch.dict(os.environ, WSYNC_ENGINE_SOCKET="host1"):
            self.assertEqual(adapter_settings.read(8000).socket, other)
        with unittest.mock.patch.dict(os.environ, WSYNC_ENGINE_SOCKET="/elsewhere/x.engines"):
            self.assertEqual(adapter_settings.read(8000).socket, "/elsewhere/x.engines")

    def adapter_refused(self):
        with self.assertRaises(wsync.InvalidInput) as caught:
            adapter_settings.read(8000)
        return caught.exception.sentence


ENGINE = """
import sys
import numpy as np
import wsync
replica = wsync.Replica(sys.argv[1], "r0", {"w": np.zeros(4, np.float32)})
while True:
    replica.poll(None)
"""


class Strangers(unittest.TestCase):
    """What is at a path that is not the engine socket of a sidecar."""

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.listeners = []
        self.addCleanup(lambda: [listener.close() for listener in self.listeners])

    def listen(self, name, kind=socket.SOCK_STREAM):
        self.listeners.append(socket.socket(socket.AF_UNIX, kind))
        self.listeners[-1].bind(self.fleet.path(name))
        if kind == socket.SOCK_STREAM:
            self.listeners[-1].listen()
        return self.fleet.path(name)

    def left(self, name):
        path = self.listen(name)
        self.listeners.pop().close()
        return path

    def closing(self):
        path = self.listen("closing")

        def hang_up(listener):
            try:
                while True:
                    listener.accept()[0].close()
            except OSError:  # the end of the test
                return
        threading.Thread(target=hang_up, args=(self.listeners[-1],), daemon=True).start()
        return path

    def strangers(self):
        """(path, what is said of it)"""
        run_dir, directory = self.fleet.run_dir, self.fleet.directory
        plain = self.fleet.path("plain")
        with open(plain, "w", encoding="utf-8"):
            pass
        listens = rf"process {os.getpid()} \([^)]+\) listens there and does not welcome this one: "
        start = "start one with `wsync sidecar --set name=host0`$"
        named = rf"start it with `wsync sidecar --set name=host1 --set run_dir={directory}`$"
        return ((f"{run_dir}/control", listens + "frame: the peer speaks ZeroMQ, as coordinators and commands do, and not the protocol "
                 rf"of this socket; expected the engine socket of a sidecar, .*: {run_dir} has host.engines$"),
                (f"{run_dir}/control.http", listens + rf"frame: the peer speaks HTTP, .*: {run_dir} has host.engines$"),
                (f"{run_dir}/absent.engines", rf"there is no such file; .*: {run_dir} has host.engines$"),
                (self.fleet.path("absent"), f"there is no such file; .*: {start}"),
                (self.fleet.path("host1.engines"), f"there is no such file; .*: {named}"),
                (plain, f"it is a file and not a socket; .*: {start}"),
                (run_dir, f"it is a directory; .*: {start}"),
                (self.left("left"), f"its socket is left over from a process that has ended; .*: {start}"),
                (self.listen("datagrams", socket.SOCK_DGRAM), f"connect to .*: Protocol wrong type for socket; .*: {start}"),
                (self.closing(), listens + f"the peer closed the connection; .*: {start}"))

    def test_an_engine_says_what_is_there_and_what_to_do(self):
        self.fleet.sidecar()
        self.enterContext(self.fleet.publisher(**{"http.address": "auto"}))
        begun = [(path, said, self.fleet.program(ENGINE, path)) for path, said in self.strangers()]
        silent = self.listen("silent")
        begun.append((silent, r"process \d+ \([^)]+\) listens there and does not welcome this one: it has not answered within 5000 ms; ",
                      self.fleet.program(ENGINE, silent)))
        for path, said, engine in begun:
            until(lambda: "no sidecar answers" in self.fleet.said(engine), f"what the engine at {path} says")
            line = self.fleet.said(engine).splitlines()[0].removesuffix("; trying again")
            self.assertRegex(line, rf"r0 rank 0: no sidecar answers at {path}: {said}")
            self.assertIsNone(engine.poll())  # it goes on trying

    def test_a_reader_says_what_is_there_and_what_to_do(self):
        self.fleet.sidecar()
        self.enterContext(self.fleet.publisher(**{"http.address": "auto"}))
        for path, said in self.strangers():
            with self.assertRaises((wsync.DeadlineExceeded, wsync.EngineRefused, wsync.Refused)) as caught, wsync.Reader(path) as reader:
                reader.open(step=1, timeout=0.1)
            self.assertRegex(caught.exception.sentence, rf"no sidecar answers at {path}: {said}")

    def test_a_trainer_does_not_take_the_socket_of_another_process(self):
        sidecar, engines = self.fleet.sidecar()
        other = self.listen("other")
        for path, said in ((engines, rf"{engines} is held by process {sidecar.pid}: stop it, or use another path"),
                           (other, rf"{other} is a socket that is not of wsync, and process {os.getpid()} listens there: stop that "
                                   "program, or use another path")):
            with self.assertRaises(wsync.Busy) as caught:
                self.fleet.publisher(listen=f"ipc://{path}")
            self.assertRegex(caught.exception.sentence, f"the coordinator's address: {said}")
            self.assertTrue(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
