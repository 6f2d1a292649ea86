"""Traces of a running fleet: every bucket on its way from the trainer's snapshot to each engine."""
import collections
import json
import os
import subprocess
import sys
import unittest

from fleet import Fleet
from schema import validate

WSYNC = sys.argv.pop()
SEPARATE = ["--set", "devices.kind=separate", "--set", "devices.count=2", "--set", "devices.buffer_bytes=1MiB"]
BUCKET = ["--set", "bucket_bytes=2MiB"]
STAGES = ["snapshot", "receive", "h2d", "broadcast", "reload"]


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def format_problems(trace):
    """What the Trace Event Format does not allow, or a viewer would drop."""
    problems = []
    threads = collections.defaultdict(list)
    flows = collections.defaultdict(list)
    for number, event in enumerate(trace["traceEvents"]):
        needed = {"X": ["name", "cat", "pid", "tid", "ts", "dur", "args"], "M": ["name", "pid", "args"]}.get(
            event["ph"], ["name", "cat", "id", "pid", "tid", "ts"])
        problems += [f"event {number} has no {field}" for field in needed if field not in event]
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            threads[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000), event))
        elif event["ph"] in "stf":
            flows[event["id"], event["cat"], event["name"]].append(event)
            if event["ph"] == "f" and event.get("bp") != "e":
                problems.append(f"event {number} ends a flow at the next span, not the one that it lies in")
        elif event["ph"] != "M":
            problems.append(f"event {number} is of a kind that nobody writes")
    for spans in threads.values():
        open_ends = []
        for begin, end, event in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                problems.append(f"{event['name']} overlaps another span of its thread")
            open_ends.append(end)
    for key, events in flows.items():
        if [e["ph"] for e in events] != ["s"] + ["t"] * (len(events) - 2) + ["f"]:
            problems.append(f"flow {key} is {[e['ph'] for e in events]}")
    return problems


def chains(trace):
    """The spans of each flow: the innermost of its thread at each event's time."""
    spans = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append(event)
    found = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] not in "stf":
            continue
        at = event["ts"]
        inside = [s for s in spans[event["pid"], event["tid"]] if s["ts"] <= at <= s["ts"] + s["dur"] + 0.0005]
        found[event["id"]].append(max(inside, key=lambda s: s["ts"]))
    return list(found.values())


class Traces(unittest.TestCase):
    def run_wsync(self, fleet, *arguments):
        done = subprocess.run([WSYNC, *arguments, "--json"], env=fleet.environment, text=True, capture_output=True,
                              timeout=60)
        return done.returncode, validate(done.args, done.stdout)

    def complete(self, trace, version, engines, stages):
        """Every bucket of each engine has a flow through these stages, in the order of time."""
        told = {p["pid"]: p for p in trace["otherData"]["processes"]}
        reached = collections.defaultdict(set)
        for chain in chains(trace):
            last = chain[-1]
            if last["args"]["version"] != version:
                continue
            self.assertEqual([s["args"]["stage"] for s in chain], stages)
            self.assertEqual({s["args"]["version"] for s in chain}, {version})
            for before, after in zip(chain, chain[1:]):
                within = sum(told[s["pid"]].get("clock_uncertainty_us", 0) for s in (before, after))
                self.assertLessEqual(before["ts"], after["ts"] + within, f"{before['name']} before {after['name']}")
            for span in chain[:1] + chain[-1:]:
                if "bucket" in span["args"]:
                    reached[last["args"]["engine"], span["args"]["stage"]].add(span["args"]["bucket"])
        self.assertEqual({engine for engine, _ in reached}, set(engines))
        return reached

    def buckets(self, trace, stage, version, process=None):
        return {e["args"]["bucket"] for e in trace["traceEvents"]
                if e["ph"] == "X" and e["args"].get("stage") == stage and e["args"]["version"] == version
                and process in (None, e["pid"])}

    def lanes(self, trace):
        """Names of the threads, which a viewer shows as lanes."""
        return {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}

    def test_a_push_is_followed_bucket_by_bucket_through_two_sidecars(self):
        with Fleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            _, first = fleet.sidecar("s0", *SEPARATE)
            _, second = fleet.sidecar("s1", "--set", "transport=tcp", *SEPARATE)
            for index, (socket, engine) in enumerate([(first, "a"), (first, "b"), (second, "c")]):
                fleet.engine(socket, engine, one, "--device-index", str(index % 2))
            fleet.start("trainer", "--set", "min_sidecars=2", *BUCKET)
            self.assertEqual(fleet.ask("push", one)[0], 0)
            path = fleet.path("x.json")
            code, answer = fleet.ask("push", two, "--trace", path)
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["trace"], path)
            version = answer["result"]["version"]
            trace = load(path)
            self.assertEqual(format_problems(trace), [])
            names = {p["name"] for p in trace["otherData"]["processes"]}
            self.assertEqual(names, {"coordinator", "sidecar s0", "sidecar s1"})
            self.assertEqual({p["clock"] for p in trace["otherData"]["processes"]}, {"same"})
            self.assertEqual(trace["otherData"]["notes"], [])
            reached = self.complete(trace, version, "abc", STAGES)
            of_transfer = self.buckets(trace, "snapshot", version)
            self.assertGreater(len(of_transfer), 1)
            self.assertNotEqual(of_transfer, self.buckets(trace, "reload", version), "cut differently on devices")
            for engine in "abc":
                self.assertEqual(reached[engine, "snapshot"], of_transfer)
                self.assertEqual(reached[engine, "reload"], self.buckets(trace, "h2d", version))

            lanes = {"snapshot", "snapshot arena", "round", "record", "staging", "H2D 0", "H2D 1", "IPC 0", "IPC 1", "engine a", "engine b", "engine c"}
            self.assertLessEqual(lanes, self.lanes(trace))
            stored = [e["pid"] for e in trace["traceEvents"] if e["name"] == f"record with target {version}"]
            self.assertEqual(len(set(stored)), 3, "of the coordinator and both sidecars")
            self.assertIn("pause", {e["cat"] for e in trace["traceEvents"] if e["ph"] == "X"})

            # What is kept has both updates; the newest is written unless more are asked for.
            everything = fleet.path("all.json")
            code, answer = fleet.ask("trace", "get", "--output", everything, "--updates", "0")
            self.assertEqual(code, 0, answer)
            self.assertEqual(len(answer["result"]["versions"]), 2)
            self.assertEqual(answer["result"]["versions"][0], version)
            self.assertEqual(self.lanes(load(everything)) & {"engine a", "engine b", "engine c"}, {"engine a", "engine b", "engine c"})
            code, answer = fleet.ask("trace", "get", "--output", everything)
            self.assertEqual(answer["result"]["versions"], [version])
            # A sidecar answers for itself, and a rollback and a verify are traced as well.
            code, answer = fleet.ask("trace", "get", "--output", everything, address=f"ipc://{fleet.run_dir}/s1.control")
            self.assertEqual([p["name"] for p in answer["result"]["processes"]], ["sidecar s1"])
            self.assertEqual(fleet.ask("verify", "--trace", path)[0], 0)
            self.assertEqual([e["name"] for e in load(path)["traceEvents"] if e["ph"] == "X"], ["verify", "verify"])
            code, answer = fleet.ask("rollback", "--trace", path)
            self.assertEqual(code, 0, answer)
            self.assertTrue(self.buckets(load(path), "reload", answer["result"]["to"]))

    def test_engines_of_unified_devices_end_the_flow_of_every_bucket(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar_trace, engine_trace = fleet.path("sidecar.json"), fleet.path("engine.json")
            sidecar, engines = fleet.sidecar("s0", "--trace", sidecar_trace)
            engine = fleet.engine(engines, "a", one, "--trace", engine_trace)
            # Nobody coordinates: the push does, and asks for the trace before it leaves.
            path = fleet.path("x.json")
            code, answer = fleet.ask("push", one, "--trace", path)
            self.assertEqual(code, 0, answer)
            version = answer["result"]["version"]
            trace = load(path)
            self.assertEqual(format_problems(trace), [])
            reached = self.complete(trace, version, "a", ["snapshot", "receive", "load"])
            self.assertEqual(reached["a", "snapshot"], self.buckets(trace, "snapshot", version))
            for process in (engine, sidecar):
                self.assertEqual(fleet.stop(process)[0], 0)
            self.assertEqual(format_problems(load(sidecar_trace)), [])
            self.assertTrue(os.path.exists(fleet.path("sidecar.svg")))
            self.assertIn(f"load of {version}", {e["name"] for e in load(engine_trace)["traceEvents"]})
            self.assertIn("serving", self.lanes(load(engine_trace)))

    def test_what_cannot_be_traced_is_refused_before_anything_is_done(self):
        with Fleet(WSYNC) as fleet:
            def refused(code, *arguments):
                found, answer = self.run_wsync(fleet, *arguments)
                self.assertEqual(found, code, answer)
                return answer["error"]["message"]

            missing = fleet.path("none/x.json")
            self.assertIn("there is no directory", refused(2, "trace", "get", "-o", missing))
            self.assertIn("there is no directory", refused(2, "push", fleet.directory, "--trace", missing))
            self.assertIn("it is a directory", refused(2, "verify", "--trace", fleet.directory))
            self.assertIn("ends with .json", refused(2, "sidecar", "--trace", fleet.path("x.svg")))
            self.assertIn("ends with .json", refused(2, "trainer", "--trace", fleet.path("x.svg")))
            self.assertIn("no directory", refused(2, "engine", "--checkpoint", fleet.directory, "--trace", missing))
            self.assertIn("control", refused(3, "trace", "get", "-o", fleet.path("x.json")))
            self.assertFalse(os.path.exists(fleet.path("x.json")))


if __name__ == "__main__":
    unittest.main()
