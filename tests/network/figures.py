#!/usr/bin/env python3
"""Measures how a version reaches several hosts, which are network namespaces of this machine with a limited rate. Needs root.

Usage: figures.py WSYNC TRAINER_RANK [--size 1GiB] [--hosts 8] [--megabits 1000] [--rounds 3] [--output FILE.json]

Two cases, each with a fleet of its own in every round:

  one    the trainer is on one host
  parts  the ranks of the trainer are on two hosts, and each serves its own part

Every host sends and receives at the same rate. Each fleet gets two versions with other bytes, in full. `staged` is the time from the first
announcement until the last sidecar has the whole version and has verified it. `transfer` is the part of it after the first request for bytes, taken
from the trace: before, the sidecars make their memory, all at the same time on the cores of one machine. The floor is the time in which one link carries
the bytes of the model, without any header. `egress` is what the hosts of the trainer have sent, with all headers, by the bytes of the model.
`predicted` is what `wsync bench scale --staging` says. Medians.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import hosts
from key_fleet import BEATS, KeyFleet

from trainer_process import COMMITTED, TrainerProcess

hosts.DEADLINE_S = 900  # a push takes minutes here
KEPT = BEATS[1::2]
WAIT = ("deadlines.stage=10m", "deadlines.publish=15m", "deadlines.gather=2m")


def bytes_of(text):
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) << shift
    raise SystemExit(f"--size: expected a number of MiB or GiB, found '{text}'")


def predicted(options):
    command = [options.wsync, "bench", "scale", "--staging", options.size, "--gpus", str(options.hosts), "--gpus-per-host", "1",
               "--network", f"{options.megabits * 125}KB", "--json"]
    (point,) = json.loads(subprocess.run(command, text=True, capture_output=True, check=True).stdout)["result"]["staging"]
    return point["staged"]["seconds"]


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
        command = (self.options.trainer_rank, str(rank), "2", self.options.checkpoints[0], "rows", *KEPT, *WAIT, *settings)
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
        return [self.during(("trainer0",), lambda path=path: self.pushed(path)["staged_ns"] / 1e9) for path in self.options.checkpoints]

    def publish_parts(self):
        ranks = [self.rank("trainer0", 0, f"keys={self.keys}", "listen=tcp://10.0.0.1:7000", "data_address=tcp://10.0.0.1:7001",
                           "min_replicas=0"),
                 self.rank("trainer1", 1, "leader=tcp://trainer0:7000", f"publisher_key={self.keys}/issued/publisher.trainer1.key",
                           "data_address=tcp://0.0.0.0:0", "advertise=trainer1")]
        self.sidecars_join()

        def publish(step):
            for rank in ranks:
                rank.publish(step)
            for rank in ranks:
                event = rank.published()
                assert event["code"] == 0, event
            event = ranks[0].wait()
            assert (event["code"], event["state"]) == (0, COMMITTED), event
            code, answer = self.ask("status")
            assert code == 0, answer
            return answer["result"]["last_update"]["staged_ns"] / 1e9

        return [self.during(("trainer0", "trainer1"), lambda step=step: publish(step)) for step in (1, 2)]

    def during(self, trainers, work):
        model = self.options.bytes
        sent, used, begin = {host: self.sent(host) for host in trainers}, self.processor_s(), time.monotonic()
        staged_s = work()
        whole_s, used = time.monotonic() - begin, self.processor_s() - used
        by_host = {host: (self.sent(host) - sent[host]) / model for host in trainers}
        transfer_s = self.transfer_s()
        floor_s = model * 8 / (self.options.megabits * 1e6)
        return {"staged_s": staged_s, "transfer_s": transfer_s, "whole_s": whole_s, "staged_of_floor": staged_s / floor_s,
                "transfer_of_floor": transfer_s / floor_s, "transfer_of_predicted": transfer_s / self.options.predicted_s,
                "egress": sum(by_host.values()), "egress_of_hosts": by_host, "processor_s": used}

    def transfer_s(self):
        path = self.path("trace.json")
        code, answer = self.ask("trace", "get", "--output", path)
        assert code == 0, answer
        events = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        begin = min(span["ts"] for span in spans if span["name"].endswith(" received"))
        return (max(span["ts"] + span["dur"] for span in spans if span["name"].startswith("staging of ")) - begin) / 1e6


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
    if why := hosts.why_no_hosts():
        raise SystemExit(f"figures.py: {why}")
    options.wsync, options.trainer_rank = os.path.abspath(options.wsync), os.path.abspath(options.trainer_rank)
    options.bytes = bytes_of(options.size)
    options.predicted_s = predicted(options)
    with Measured(options) as fleet:  # keeps the checkpoint
        options.checkpoints = [fleet.checkpoint(f"model{seed}", seed, size=options.size) for seed in (1, 2)]
        rounds = {f"{case} {update}": [] for case in ("one", "parts") for update in ("first", "next")}
        for number in range(options.rounds):
            for case in ("one", "parts"):
                with Measured(options) as measured:
                    found = getattr(measured, f"publish_{case}")()
                for update, last in zip(("first", "next"), found):
                    rounds[f"{case} {update}"].append(last)
                    print(f"round {number + 1} {case:5} {update:5}  staged {last['staged_s']:6.2f} s, transfer {last['transfer_s']:6.2f} s, "
                          f"{last['transfer_of_floor']:.3f} of the floor, {last['transfer_of_predicted']:.3f} of the prediction; egress {last['egress']:.4f} models; "
                          f"{last['processor_s']:.1f} s of processors", file=sys.stderr, flush=True)
    result = {"size_bytes": options.bytes, "hosts": options.hosts, "megabits": options.megabits, "predicted_s": options.predicted_s,
              "rounds": rounds, "median": {}}
    for case, found in rounds.items():
        result["median"][case] = {key: statistics.median(each[key] for each in found)
                                  for key in found[0] if key != "egress_of_hosts"}
    print(json.dumps(result["median"], indent=2))
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
