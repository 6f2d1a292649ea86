"""Training runs of real rank processes: what they refuse before any rank is started, what ends them, that they learn,
and that what they draw is the schedule."""
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import unittest
import xml.etree.ElementTree

import tensors
from fleet import DEADLINE_S
from schema import validate
from training import FILES, TINY, TINY_DATA, TrainingFleet, digests

WSYNC = sys.argv.pop()

QUERY = "model.layers.1.self_attn.q_proj.weight"
DIVERGES = {"optimizer.learning_rate": 1000, "optimizer.final_learning_rate": 1000, "optimizer.clip_norm": 0}


def read_file(path):
    """The header of a safetensors file as an object, and its data."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size)), file.read()


def header(name, change):
    """Changes the header of a file of a state; the data stay."""
    def spoil(directory):
        path = os.path.join(directory, name)
        fields, data = read_file(path)
        change(fields)
        tensors.write_file(path, fields, data)
    return spoil


def without(name, tensor):
    """The file without this tensor, and without its bytes."""
    def spoil(directory):
        path = os.path.join(directory, name)
        fields, data = read_file(path)
        begin, end = fields.pop(tensor)["data_offsets"]
        for key, entry in fields.items():
            if key != "__metadata__" and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [at - (end - begin) for at in entry["data_offsets"]]
        tensors.write_file(path, fields, data[:begin] + data[end:])
    return spoil


def metadata(**values):
    return header(STATE, lambda fields: fields["__metadata__"].update(values))


def turned(tensor):
    """Another shape of as many bytes."""
    return lambda fields: fields[tensor].update(shape=fields[tensor]["shape"][::-1])


def config(**values):
    def spoil(directory):
        path = os.path.join(directory, CONFIG)
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(fields | values, file)
    return spoil


def shortened(name):
    return lambda directory: os.truncate(os.path.join(directory, name),
                                         os.path.getsize(os.path.join(directory, name)) - 5)


def gone(name):
    return lambda directory: os.unlink(os.path.join(directory, name))


CONFIG, MODEL, STATE = FILES
EMBED = "model.embed_tokens.weight"
# What is done to a checkpoint, and what the error names.
CHECKPOINTS = {
    "no config.json": (gone(CONFIG), [CONFIG]),
    "a config.json that is no JSON": (tensors.write_text(CONFIG, "{"), [CONFIG, "JSON"]),
    "another architecture": (config(architectures=["LlamaForCausalLM"], model_type="llama"), [CONFIG, "llama"]),
    "a vocabulary that has no room for bytes": (config(vocab_size=255), [CONFIG, "255", "256"]),
    "more layers than its tensors": (config(num_hidden_layers=8), ["model.layers.4", "missing"]),
    "layers that the ranks cannot share": (config(num_hidden_layers=5), [CONFIG, "5 layers", "4 stages", "pp 2", "vpp 2"]),
    "experts that the ranks cannot share": (config(num_experts=3), [CONFIG, "ep 2", "3 experts"]),
    "fewer experts than its tensors": (config(num_experts=2), [MODEL, "experts"]),
    "another width": (config(hidden_size=32), [MODEL, "shape", "expected"]),
    "a shape that is not config.json's": (header(MODEL, turned("lm_head.weight")), [MODEL, "lm_head.weight", "[16, 256]",
                                                                                     "[256, 16]"]),
    "a tensor that is missing": (without(MODEL, QUERY), [QUERY, "missing"]),
    "a dtype that is no weight's": (header(MODEL, lambda fields: fields[QUERY].update(dtype="I32")), [MODEL, QUERY, "I32"]),
    "a truncated file": (shortened(MODEL), [MODEL, "truncated"]),
    "no weights": (gone(MODEL), ["no checkpoint here"]),
}
# The same of a state to go on from, which has all of a checkpoint.
STATES = CHECKPOINTS | {
    "no optimizer": (gone(STATE), [STATE, "not a state to resume from"]),
    "a truncated optimizer": (shortened(STATE), [STATE, "truncated"]),
    "a mean that is missing": (without(STATE, f"mean/{QUERY}"), [STATE, f"mean/{QUERY}"]),
    "a variance of another shape": (header(STATE, turned(f"variance/{EMBED}")), [STATE, f"variance/{EMBED}", "[256, 16]"]),
    "a mean of another dtype": (header(STATE, lambda fields: fields[f"mean/{QUERY}"].update(dtype="I32")),
                                [STATE, f"mean/{QUERY}", "I32"]),
    "another format": (metadata(format="2"), [STATE, "format", "'2'"]),
    "a step that is no number": (metadata(step="2x"), [STATE, "step", "'2x'"]),
    "a step below zero": (metadata(step="-1"), [STATE, "step", "'-1'"]),
    "no step": (header(STATE, lambda fields: fields["__metadata__"].pop("step")), [STATE, "step"]),
    "a digest that is none": (metadata(text="xyz"), [STATE, "text", "xyz"]),
    "no metadata": (header(STATE, lambda fields: fields.pop("__metadata__")), [STATE, "format"]),
    "another text's digest": (metadata(text="0" * 32), ["another text", "0" * 32]),
}
# Settings under which a good state of 2 steps is refused, and what the error names.
OTHER_RUNS = {
    "other text": ({"data.files": "/usr/share/common-licenses/GPL-3"}, ["another text", "data.files"]),
    "another seed": ({"data.seed": 7}, ["data.seed is 1", "7"]),
    "other replicas": ({"parallel.dp": 4}, ["2 replicas", "this run's 4"]),
    "other micro-batches": ({"schedule.microbatches": 8}, ["4 micro-batches", "8"]),
    "other sequences": ({"data.sequence": 8}, ["16 bytes", "8"]),
    "all steps are taken": ({"steps": 2}, ["2 steps", "steps"]),
    "no room for its layers": ({"parallel.vpp": 4}, ["4 layers", "8 stages"]),
}
# Settings that do not go together, as is found with the model's sizes alone.
SIZES = {
    "replicas that ep does not divide": ({"parallel.dp": 3, "parallel.ep": 2}, ["parallel.ep", "parallel.dp", "3"]),
    "overlap without expert parallelism": ({"schedule.overlap": True}, ["overlap", "ep"]),
    "overlap without chunks": ({"schedule.overlap": True, "parallel.dp": 2, "parallel.ep": 2, "parallel.vpp": 1},
                               ["overlap", "vpp"]),
    "fewer micro-batches than ranks": ({"parallel.pp": 2, "schedule.microbatches": 1}, ["micro-batches", "2", "1"]),
    "layers that are not shared out evenly": ({"parallel.pp": 3}, ["model.layers", "6", "4"]),
    "an order without chunks": ({"schedule.order": "1f1b"}, ["1f1b", "one chunk", "2"]),
    "steps that are no number": ({"steps": "many"}, ["steps", "many"]),
}


class Refusals(unittest.TestCase):
    """Each is one sentence and exit code 2. No rank has been started, nothing has been written."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = TrainingFleet(WSYNC)
        cls.addClassCleanup(cls.fleet.__exit__, None, None, None)
        cls.saved = cls.fleet.path("saved")
        cls.fleet.trained(TINY | {"parallel.dp": 2, "parallel.ep": 2, "steps": 2, "save.directory": cls.saved})
        cls.state = os.path.join(cls.saved, "step_2")
        cls.layout = TINY_DATA | {"parallel.dp": 2, "parallel.ep": 2, "steps": 4}

    def refused(self, label, values, arguments, named, expected=2):
        with self.subTest(label):
            out = self.fleet.path("out")
            before = digests(self.fleet.directory)
            run = self.fleet.training({"save.directory": out} | values, *arguments)
            children = run.processes_until_its_end()
            code, answer, log = run.result()
            about = f"exit {code}: {answer}\n{log}"
            self.assertEqual(code, expected, about)
            self.assertEqual(children, {}, about)
            self.assertEqual(log, "")  # ranks would say why they stop
            for word in named:
                self.assertIn(word, answer["error"]["message"], about)
            after = digests(self.fleet.directory)
            self.assertEqual({p: d for p, d in after.items() if not p.endswith(".log")},
                             {p: d for p, d in before.items() if not p.endswith(".log")})

    def spoiled(self, spoil):
        directory = self.fleet.path(f"spoiled{len(self.fleet.processes)}")
        shutil.copytree(self.state, directory)
        spoil(directory)
        return directory

    def test_checkpoints(self):
        for label, (spoil, named) in CHECKPOINTS.items():
            self.refused(label, self.layout, ["--checkpoint", self.spoiled(spoil)], named)

    def test_states(self):
        for label, (spoil, named) in STATES.items():
            directory = self.spoiled(spoil)
            self.refused(label, self.layout, ["--resume", directory], [directory, *named])

    def test_states_of_other_runs(self):
        for label, (values, named) in OTHER_RUNS.items():
            self.refused(label, self.layout | values, ["--resume", self.state], [self.state, *named])

    def test_sizes(self):
        for label, (values, named) in SIZES.items():
            self.refused(label, TINY | {"model.layers": 4} | values, [], named)

    def test_what_a_run_would_save_over(self):
        self.refused("at its end", TINY | {"steps": 2, "save.directory": self.saved}, [], [self.state, "save.directory"])
        self.refused("on its way", TINY | {"steps": 8, "save.every": 2, "save.directory": self.saved}, [], [self.state])
        file = self.fleet.path("file")
        tensors.write_text("file", "")(self.fleet.directory)
        self.refused("a file", TINY | {"save.directory": file}, [], [file, "save.directory"], expected=1)

    def test_text(self):
        nowhere = self.fleet.path("nowhere")
        self.refused("none", TINY, ["--data", nowhere], [nowhere, "o such file"])
        short = self.fleet.path("short")
        tensors.write_text("short", "abc")(self.fleet.directory)
        self.refused("too short", TINY, ["--data", short], ["17 bytes", "4"])

    def test_the_same_state_is_taken_when_nothing_is_wrong_with_it(self):
        self.fleet.trained(self.layout, "--resume", self.state)
        self.fleet.trained(self.layout, "--checkpoint", self.state)

    def test_a_rank_that_there_is_not(self):
        self.refused("a rank above the others", TINY, ["--rank", "2"], ["--rank 2", "2 ranks"])
        self.refused("nowhere to meet", TINY, ["--rank", "1"], ["ranks.rendezvous"])
        self.refused("no rank", TINY | {"ranks.rendezvous": self.fleet.directory}, [], ["--rank", "ranks.rendezvous"])


class NotFinite(unittest.TestCase):
    def ended(self, fleet, named, values, *arguments):
        for more in ([], ["--sequential"]):
            with self.subTest(more=more):
                code, answer, log = fleet.train(values, *arguments, *more)
                self.assertEqual(code, 1, log)
                sentence = answer["error"]["message"]
                for word in named:
                    self.assertRegex(sentence, word)
                self.assertFalse(os.path.exists(values["save.directory"]) and os.listdir(values["save.directory"]))
        return sentence

    def test_a_run_that_diverges(self):
        with TrainingFleet(WSYNC) as fleet:
            values = TINY | DIVERGES | {"steps": 50, "save.directory": fleet.path("out")}
            self.ended(fleet, [r"^step \d+: ", r"(gradient of|parameter) (model\.|lm_head)", "no parameter was changed"],
                       values)

    def test_a_weight_of_a_checkpoint(self):
        with TrainingFleet(WSYNC) as fleet:
            saved = fleet.path("saved")
            fleet.trained(TINY | {"steps": 1, "save.directory": saved})
            path = f"{saved}/step_1/{MODEL}"
            fields, data = read_file(path)
            begin, _ = fields[QUERY]["data_offsets"]
            tensors.write_file(path, fields, data[:begin + 8] + struct.pack("<f", float("nan")) + data[begin + 12:])
            sentence = self.ended(fleet, ["^step 1: ", re.escape(QUERY)],
                                  TINY_DATA | {"steps": 2, "save.directory": fleet.path("out")}, "--checkpoint",
                                  f"{saved}/step_1")
            # Every gradient is not finite then; the one that is at fault is told.
            self.assertEqual(re.findall(r"(?:model|lm_head)[\w.]+weight", sentence), [QUERY])


class Events(unittest.TestCase):
    def told(self, *arguments, **more):
        """The names of the events of a run, and the object that follows them."""
        with TrainingFleet(WSYNC) as fleet:
            run = fleet.training(TINY | {"parallel.dp": 2, "steps": 3, "save.directory": fleet.path("saved")}, "--events", *arguments, **more)
            code, out, log = run.text_result()
            self.assertEqual(code, 0, log)
            *events, last = (validate("train", line) for line in out.splitlines())
            return [event["event"] for event in events], last["result"]

    def test_each_is_as_its_schema_says(self):
        names, result = self.told("--sequential")
        self.assertEqual(names, ["begin", "step", "step", "step", "saved", "end"])
        self.assertEqual(len(result["steps"]), 3)

    def test_those_of_a_loss(self):
        names, result = self.told(fail_point="1:backward:2")
        self.assertEqual((names[:2], names[-1]), (["ranks", "begin"], "end"))
        self.assertEqual([name for name in names if name in ("lost", "recovered", "saved")], ["lost", "recovered", "saved"])
        self.assertEqual((len(result["losses"]), len(result["recoveries"])), (1, 1))


class Learning(unittest.TestCase):
    def test_the_default_configuration_on_the_licence_texts(self):
        with TrainingFleet(WSYNC) as fleet:
            code, answer, log = fleet.training({"steps": 120}).result(4 * DEADLINE_S)  # a sanitizer takes its time
            self.assertEqual(code, 0, log)
            losses = [step["loss"] for step in answer["result"]["steps"]]
            self.assertEqual(len(losses), 120)
            self.assertTrue(5.4 < losses[0] < 5.7, losses[0])  # log(256) is 5.545
            self.assertLess(sum(losses[-10:]) / 10, 2.6)


class Drawn(unittest.TestCase):
    """The trace and the picture of a run show the actions of the schedule, in its order."""

    def turns(self, options):
        """Of each pipeline rank, its turns: lists of one action or of the two of a pair."""
        done = subprocess.run([WSYNC, "schedule", "show", "--format", "actions", *options], text=True, check=True,
                              capture_output=True, timeout=DEADLINE_S)
        lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("PP")]
        return [[turn.strip("()").split(";") for turn in line.split(",")] for line in lines]

    def follows(self, spans, turns):
        """The computation lane of one step: names are '<operator> <action>'."""
        at = 0
        for turn in turns:
            of_turn = list(itertools.takewhile(lambda span: span.split()[1] in turn, spans[at:]))
            self.assertEqual({span.split()[1] for span in of_turn}, set(turn), (turn, spans[at:at + 4]))
            if len(turn) > 1:  # the two of a pair take turns
                owners = [owner for owner, _ in itertools.groupby(span.split()[1] for span in of_turn)]
                self.assertGreaterEqual(len(owners), 4, of_turn)
                self.assertEqual(owners, (turn * len(owners))[:len(owners)], of_turn)
            at += len(of_turn)
        self.assertEqual(at, len(spans))

    def test_the_order_of_the_schedule(self):
        for values, options in (
                ({}, ["--no-overlap", "--delay-wgrad"]),
                ({"schedule.overlap": True, "schedule.offload": True, "parallel.dp": 2, "parallel.ep": 2},
                 ["--overlap", "--delay-wgrad", "--offload"]),
                ({"schedule.delay_wgrad": False, "parallel.dp": 2, "parallel.ep": 2}, ["--no-overlap"]),
                ({"schedule.order": "1f1b", "parallel.vpp": 1}, ["--order", "1f1b", "--delay-wgrad"])):
            with self.subTest(options=options), TrainingFleet(WSYNC) as fleet:
                sizes = {"parallel.pp": 2, "parallel.vpp": 2, "schedule.microbatches": 4}
                run = TINY | sizes | values | {"trace_file": fleet.path("trace"), "picture": fleet.path("step.svg"),
                                               "steps": 3}
                fleet.trained(run)
                turns = self.turns(["--pp", "2", "--vpp", str(run["parallel.vpp"]), "--microbatches", "4", *options])
                with open(fleet.path("trace.json"), encoding="utf-8") as file:
                    events = json.load(file)["traceEvents"]
                self.trace_follows(events, turns, run.get("parallel.dp", 1), run)
                root = xml.etree.ElementTree.parse(fleet.path("step.svg")).getroot()
                self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
                words = " ".join(root.itertext())
                self.assertIn("Step 3 as measured", words)
                for rank in range(2):
                    self.assertIn(f"PP{rank}", words)

    def trace_follows(self, events, turns, dp, run):
        ranks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(sorted(ranks.values()),
                         [f"trainer rank {rank} (PP{rank // dp}, replica {rank % dp})" for rank in range(2 * dp)])
        for pid, rank in ranks.items():
            lanes = {event["args"]["name"]: event["tid"] for event in events
                     if event["name"] == "thread_name" and event["pid"] == pid}
            spans = {lane: sorted((event for event in events if event["ph"] == "X" and event["pid"] == pid
                                   and event["tid"] == tid), key=lambda event: event["ts"])
                     for lane, tid in lanes.items()}
            for lane in ("computation", "communication", *(["copy"] if run.get("schedule.offload") else [])):
                self.assertTrue(spans.get(lane), (rank, lane))
                for one, next_one in zip(spans[lane], spans[lane][1:]):  # a lane does one thing at a time
                    self.assertLessEqual(one["ts"] + one["dur"], next_one["ts"] + 0.01, (rank, lane, one, next_one))
            steps = [event for event in spans["steps"]]
            self.assertEqual([event["name"] for event in steps], ["step 1", "step 2", "step 3"])
            pipeline = int(re.search(r"PP(\d)", rank)[1])
            for step in steps:
                of_step = [event["name"] for event in spans["computation"]
                           if step["ts"] <= event["ts"] <= step["ts"] + step["dur"]]
                self.follows(of_step, turns[pipeline])


if __name__ == "__main__":
    unittest.main()
