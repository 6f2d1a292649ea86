#!/usr/bin/env python3
"""Measures how a version reaches several hosts, which are network namespaces of this machine with a limited rate. Needs root.

Usage: figures.py WSYNC TRAINER_RANK [--size 1GiB] [--hosts 8] [--megabits 1000] [--rounds 3] [--output FILE.json]

Two cases, each with a fleet of its own in every round:

  one    the trainer is on one host
  parts  the ranks of the trainer are on two hosts, and each serves its own part

Every host sends and receives at the same rate. `staged` is the time from the first announcement until the last sidecar has the whole version
and has verified it. The floor is the time in which one link carries the bytes of the model, without any header. `egress` is what the hosts of the
trainer have sent, with all headers, by the bytes of the model. Medians.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

from hosts import why_no_hosts
from key_fleet import BEATS, KeyFleet

from trainer_process import COMMITTED, TrainerProcess

KEPT = BEATS[1::2]
WAIT = ("deadlines.stage=10m", "deadlines.publish=15m", "deadlines.gather=2m")


def bytes_of(text):
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) << shift
    raise SystemExit(f"--size: expected a number of MiB or GiB, found '{text}'")


class Rank(TrainerProcess):
    deadline_ms = 900_000


class Measured(KeyFleet):
    """Sidecars without engines on some hosts, and a trainer on one or two others."""

    def __init__(self, options):
        names = [f"engines{i}" for i in range(options.hosts)]
        addresses = {name: (f"10.0.0.{i + 10}", f"fd00::1:{i + 1}") for i, name in enumerate(names)}
        addresses |= {"trainer0": ("10.0.0.1", "fd00::1"), "trainer1": ("10.0.0.3", "fd00::3")}
        super().__init__(options.wsync, addresses, sidecars=[f"s{i}" for i in range(options.hosts)])
        self.options = options
        self.local("keys", "add", "publisher", "trainer1", "--keys", self.keys)
        for host in addresses:
            self.limit(options.megabits, host)

    def sidecars_join(self):
        for i in range(self.options.hosts):
            self.engines(f"s{i}", "--set", "http.address=none", at=f"engines{i}")
        self.joined(*(f"s{i}" for i in range(self.options.hosts)))

    def rank(self, host, rank, *settings):
        command = (self.options.trainer_rank, str(rank), "2", self.options.checkpoint, "rows", *KEPT, *WAIT, *settings)
        return Rank(self, self.entered(host, *command), self.environment_of(host))

    def processor_s(self):
        """Processor time of all processes of the fleet."""
        ticks = 0
        for process in self.processes:
            try:
                fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
            except OSError:
                pass  # a command that has ended
        return ticks / os.sysconf("SC_CLK_TCK")

    def publish_one(self):
        self.trainer(*(word for setting in ("min_replicas=0", *WAIT) for word in ("--set", setting)))
        self.sidecars_join()
        return self.during(("trainer0",), lambda: self.pushed(self.options.checkpoint)["staged_ns"] / 1e9)

    def publish_parts(self):
        ranks = [self.rank("trainer0", 0, f"keys={self.keys}", "listen=tcp://10.0.0.1:7000", "data_address=tcp://10.0.0.1:7001",
                           "min_replicas=0"),
                 self.rank("trainer1", 1, "leader=tcp://trainer0:7000", f"publisher_key={self.keys}/issued/publisher.trainer1.key",
                           "data_address=tcp://0.0.0.0:0", "advertise=trainer1")]
        self.sidecars_join()

        def publish():
            for rank in ranks:
                rank.publish(1)
            for rank in ranks:
                event = rank.published()
                assert event["code"] == 0, event
            event = ranks[0].wait()
            assert (event["code"], event["state"]) == (0, COMMITTED), event
            code, answer = self.ask("status")
            assert code == 0, answer
            return answer["result"]["last_update"]["staged_ns"] / 1e9

        return self.during(("trainer0", "trainer1"), publish)

    def during(self, hosts, work):
        model = self.options.bytes
        sent, used, begin = {host: self.sent(host) for host in hosts}, self.processor_s(), time.monotonic()
        staged_s = work()
        floor_s = model * 8 / (self.options.megabits * 1e6)
        by_host = {host: (self.sent(host) - sent[host]) / model for host in hosts}
        return {"staged_s": staged_s, "whole_s": time.monotonic() - begin, "of_floor": staged_s / floor_s,
                "egress": sum(by_host.values()), "egress_of_hosts": by_host, "processor_s": self.processor_s() - used}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("wsync", help="the program wsync")
    parser.add_argument("trainer_rank", help="the program trainer_rank of the tests")
    parser.add_argument("--size", default="1GiB", help="of the model (default 1GiB)")
    parser.add_argument("--hosts", type=int, default=8, help="with a sidecar each (default 8)")
    parser.add_argument("--megabits", type=int, default=1000, help="rate of every link in Mbit/s (default 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each case (default 3)")
    parser.add_argument("--output", help="writes the result there as JSON")
    options = parser.parse_args()
    if why := why_no_hosts():
        raise SystemExit(f"figures.py: {why}")
    options.wsync, options.trainer_rank = os.path.abspath(options.wsync), os.path.abspath(options.trainer_rank)
    options.bytes = bytes_of(options.size)
    with Measured(options) as fleet:  # keeps the checkpoint
        options.checkpoint = fleet.checkpoint("model", 1, size=options.size)
        rounds = {"one": [], "parts": []}
        for number in range(options.rounds):
            for case, found in rounds.items():
                with Measured(options) as measured:
                    found.append(getattr(measured, f"publish_{case}")())
                last = found[-1]
                print(f"round {number + 1} {case:5}  staged {last['staged_s']:6.2f} s, {last['of_floor']:.3f} of the floor; "
                      f"egress {last['egress']:.4f} models; {last['processor_s']:.1f} s of processors", file=sys.stderr, flush=True)
    result = {"size_bytes": options.bytes, "hosts": options.hosts, "megabits": options.megabits, "rounds": rounds, "median": {}}
    for case, found in rounds.items():
        result["median"][case] = {key: statistics.median(each[key] for each in found)
                                  for key in ("staged_s", "of_floor", "egress", "processor_s")}
    print(json.dumps(result["median"], indent=2))
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
