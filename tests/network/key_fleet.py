"""A fleet over several hosts whose processes have keys, for tests."""
import os
import re

from hosts import Hosts

from fleet import short
from pages import get

BEATS = ("--set", f"heartbeat.interval={short(200)}", "--set", f"heartbeat.deadline={short(1500)}")


class KeyFleet(Hosts):
    def __init__(self, wsync, addresses=None, sidecars=("s0", "s1")):
        super().__init__(wsync, addresses)
        self.keys = self.path("keys")
        self.local("keys", "init", self.keys)
        self.key = self.path("alice.key")
        self.local("keys", "add", "operator", "alice", "--keys", self.keys, "-o", self.key)
        for name in sidecars:
            self.local("keys", "add", "sidecar", name, "--keys", self.keys)

    def local(self, *arguments):
        code, answer = self.ask_on("trainer0", *arguments)
        assert code == 0, answer
        return answer["result"]

    def trainer(self, *settings, host="10.0.0.1", on="trainer0"):
        return self.on(on, "trainer", "--set", f"keys={self.keys}", "--set", f"listen=tcp://{host}:7000",
                       "--set", f"data_address=tcp://{host}:7001", *BEATS, *settings)

    def engines(self, name, *settings, coordinator=None, data="tcp://0.0.0.0:0", advertise=None, at="engines0"):
        """A sidecar on another host, and where its engines attach."""
        process = self.on(at, "sidecar", "--set", f"name={name}", "--set", f"coordinator={coordinator or self.address}",
                          "--set", f"key={self.keys}/issued/sidecar.{name}.key", "--set", f"data_address={data}",
                          "--set", f"advertise={advertise or at}", *BEATS, *settings)
        place = os.path.join(self.path(at), "run", f"{name}.engines")
        self.until(lambda: os.path.exists(place), f"the socket of sidecar {name}")
        return process, place

    def replica(self, place, name, checkpoint, at="engines0"):
        engine = self.on(at, "engine", "--json", "--sidecar", place, "--replica", name, "--checkpoint", checkpoint,
                         "--stats-ms", "0")
        self.event(engine, "attached")
        return engine

    def pushed(self, path, *options):
        code, answer = self.ask("push", path, *options)
        if code != 0:
            raise AssertionError(answer)
        return answer["result"]

    def sidecars(self):
        code, answer = self.ask("status")
        return {s["name"]: s for s in answer["result"]["sidecars"]} if code == 0 else {}

    def joined(self, *names):
        self.until(lambda: all(self.sidecars().get(name, {}).get("connected") for name in names), f"sidecars {names}")

    def metric(self, host, page, name):
        status, text = get(os.path.join(self.path(host), "run", f"{page}.http"), "/metrics")
        assert status == 200, text
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE).group(1))
