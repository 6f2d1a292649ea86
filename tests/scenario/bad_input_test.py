"""Bad checkpoints, configurations and arguments, given to real processes: one line that names what is wrong, exit
code 2, and nothing has changed anywhere."""
import concurrent.futures
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import unittest

import tensors
from fleet import DEADLINE_S, Fleet
from schema import validate
from tensors import A0, A1, B0, B1, EMBED, FIRST, HEAD, INDEX, SECOND, SHARDS

WSYNC = sys.argv.pop()


def run(fleet, *arguments, **more):
    return subprocess.run([WSYNC, *arguments], env=fleet.environment, text=True, capture_output=True,
                          timeout=DEADLINE_S, **more)


# ---- one way each to spoil a checkpoint: what to do to the directory, and what the error has to name ----

def header(change, shard=FIRST):
    """Changes the header of one shard, as an object; the data stay."""
    def spoil(directory):
        fields, size = tensors.layout(SHARDS[shard])
        change(fields)
        tensors.write_file(os.path.join(directory, shard), fields, tensors.data_of(size, 1))
    return spoil


def text(change, shard=FIRST):
    """The same with the header as text."""
    def spoil(directory):
        fields, size = tensors.layout(SHARDS[shard])
        tensors.write_file(os.path.join(directory, shard), change(json.dumps(fields)).encode(), tensors.data_of(size, 1))
    return spoil


def length(value):
    def spoil(directory):
        fields, size = tensors.layout(SHARDS[FIRST])
        tensors.write_file(os.path.join(directory, FIRST), fields, tensors.data_of(size, 1), value)
    return spoil


def resize(change, shard=SECOND):
    def spoil(directory):
        path = os.path.join(directory, shard)
        size = os.path.getsize(path)
        if change > 0:
            with open(path, "ab") as out:
                out.write(bytes(change))
        else:
            os.truncate(path, size + change if size + change > 0 else 5)
    return spoil


def offsets(name, begin=0, end=0, shard=FIRST):
    def change(fields):
        fields[name]["data_offsets"][0] += begin
        fields[name]["data_offsets"][1] += end
    return header(change, shard)


def index(change):
    def spoil(directory):
        weight_map = tensors.weight_map()
        change(weight_map)
        tensors.write_index(directory, weight_map)
    return spoil


def replace(name, put):
    """Another thing in the place of a file."""
    def spoil(directory):
        path = os.path.join(directory, name)
        os.unlink(path)
        put(path)
    return spoil


def two_files_hold(name):
    def spoil(directory):
        shapes = dict(SHARDS[FIRST], **{name: SHARDS[SECOND][name]})
        fields, size = tensors.layout(shapes)
        tensors.write_file(os.path.join(directory, FIRST), fields, tensors.data_of(size, 1))
    return spoil


def shape(value, name=A0):
    return header(lambda fields: fields[name].update(shape=value))


CHECKPOINTS = {
    "the header is not JSON": (text(lambda t: t[:-9] + "]]"), [FIRST, "not JSON"]),
    "the header is an array": (text(lambda t: "[1]"), [FIRST, "header"]),
    "the header is binary": (text(lambda t: "\0\1\2" * 40), [FIRST, "header"]),
    "a length over the limit": (length(100_000_001), [FIRST, "header length", "100000001", "100000000"]),
    "an absurd length": (length(2**64 - 1), [FIRST, "header length", str(2**64 - 1)]),
    "a length beyond the file": (length(99_000_000), [FIRST, "header length", "99000000"]),
    "overlapping offsets": (offsets(A0, begin=-2, end=-2), [FIRST, A0, "overlap"]),
    "hollow offsets": (offsets(A0, begin=2, end=2), [FIRST, A0, "hole"]),
    "offsets that end before they begin": (offsets(B0, end=-4000), [FIRST, B0, "begin"]),
    "a size that is not the shape's": (offsets(B0, end=-2), [FIRST, B0, "BF16 [32, 48]"]),
    "trailing bytes": (resize(+3), [SECOND, "3 trailing bytes"]),
    "a truncated file": (resize(-7), [SECOND, HEAD, "truncated"]),
    "a file of five bytes": (resize(-10**9), [SECOND, "5 bytes"]),
    "a missing shard": (lambda d: os.unlink(os.path.join(d, SECOND)), [SECOND, "missing"]),
    "a name given twice in a file": (text(lambda t: t.replace(B0, A0)), [FIRST, A0, "twice"]),
    "a name in two files": (two_files_hold(A1), [FIRST, A1, SECOND]),
    "a name twice in the index": (tensors.write_text(INDEX, '{"weight_map": {"%s": "%s", "%s": "%s"}}' % (A0, FIRST, A0, SECOND)),
                                  [INDEX, A0, "twice"]),
    "a shape with a fraction": (shape([48.5, 32]), [FIRST, A0, "shape", "48.5", "integers"]),
    "a shape with a text": (shape(["48", 32]), [FIRST, A0, "shape", "string", "integers"]),
    "a negative shape": (shape([-48, 32]), [FIRST, A0, "shape", "negative"]),
    "a shape that is a number": (shape(1536), [FIRST, A0, "shape", "array"]),
    "a shape that overflows": (shape([2**63, 2**63]), [FIRST, A0]),
    "a shape of too many dimensions": (shape([1] * 64), [FIRST, A0, "8 dimensions"]),
    "an unknown dtype": (header(lambda f: f[A0].update(dtype="BF17")), [FIRST, A0, "dtype", "BF17"]),
    "an unknown key": (header(lambda f: f[A0].update(offset=1)), [FIRST, A0, "offset"]),
    "an entry without offsets": (header(lambda f: f[A0].pop("data_offsets")), [FIRST, A0, "data_offsets"]),
    "the index maps an absent tensor": (index(lambda m: m.update({"model.layers.2.x": SECOND})),
                                        [SECOND, "model.layers.2.x", "not in it"]),
    "the index lacks a tensor": (index(lambda m: m.pop(B1)), [SECOND, B1, "index"]),
    "the index maps to the wrong file": (index(lambda m: m.update({B1: FIRST})), [B1, FIRST, SECOND]),
    "the index leaves the directory": (index(lambda m: m.update({B1: "../" + SECOND})), [INDEX, B1, "../"]),
    "the index is not JSON": (tensors.write_text(INDEX, '{"weight_map": {'), [INDEX, "JSON"]),
    "the index has no map": (tensors.write_text(INDEX, '{"metadata": {}}'), [INDEX, "weight_map"]),
    "a shard without an index": (lambda d: os.unlink(os.path.join(d, INDEX)), [INDEX, "2 shards"]),
    "a shard that nothing is mapped to": (lambda d: shutil.copy(os.path.join(d, FIRST), os.path.join(d, "model-extra.safetensors")),
                                          ["model-extra.safetensors", "no tensor is mapped"]),
    "a directory in the place of a shard": (replace(SECOND, os.mkdir), [SECOND, "not a regular file"]),
    "a pipe in the place of a shard": (replace(SECOND, os.mkfifo), [SECOND, "not a regular file"]),
    "a dangling link in the place of a shard": (replace(SECOND, lambda p: os.symlink("nowhere", p)), [SECOND, "missing"]),
    "a directory in the place of the index": (replace(INDEX, os.mkdir), [INDEX, "directory"]),
    "a dangling link in the place of the index": (replace(INDEX, lambda p: os.symlink("nowhere", p)), [INDEX, "No such file"]),
    "a name with a line end": (header(lambda f: f.update({"a\nb": dict(f.pop(A0), shape=[1])})), [FIRST, "a\\x0ab"]),
    "nothing in the directory": (lambda d: [os.unlink(os.path.join(d, n)) for n in os.listdir(d)], ["no checkpoint here"]),
    "no directory": (shutil.rmtree, ["o such", "directory"]),
}
if os.geteuid() != 0:  # no file is closed to root
    CHECKPOINTS["a shard that may not be read"] = (lambda d: os.chmod(os.path.join(d, SECOND), 0), [SECOND, "Permission denied"])
    CHECKPOINTS["a directory that may not be read"] = (lambda d: os.chmod(d, 0), ["Permission denied"])


def everything_below(*directories):
    """Names, contents and times of change: what may not be touched."""
    found = {}
    for top in directories:
        for where, _, names in os.walk(top):
            for name in names:
                path = os.path.join(where, name)
                if re.fullmatch(r"\d+\.log", name):  # what the processes of the fleet say
                    continue
                status = os.lstat(path)
                content = b""
                if os.path.isfile(path) and os.access(path, os.R_OK):
                    with open(path, "rb") as file:
                        content = file.read()
                found[path] = (status.st_mode, status.st_mtime_ns, content)
    return found


class BadCheckpoint(unittest.TestCase):
    def one_line(self, label, done, named, where=""):
        """Exit code 2 and one sentence on standard error, which holds every word of `named`."""
        about = f"{label}, {where}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        self.assertEqual(done.returncode, 2, about)
        lines = done.stderr.splitlines()
        if where == "inspect":  # lists every problem, each on a line of its own
            self.assertTrue(all(line.startswith("wsync inspect: ") for line in lines), about)
        else:
            self.assertEqual(len(lines), 1, about)
        self.assertTrue(lines[0].startswith(f"wsync {where}: "), about)
        for word in named:
            self.assertIn(word, done.stderr, about)

    def test_each_command_refuses_each_bad_checkpoint(self):
        with Fleet(WSYNC) as fleet, Fleet(WSYNC) as alone:
            good = tensors.make(fleet.path("good"), 1)
            _, socket = fleet.sidecar("s0")
            engine = fleet.engine(socket, "a", good)
            trainer = fleet.start("trainer")
            code, answer = fleet.ask("push", good)
            self.assertEqual(code, 0, answer)
            version = answer["result"]["version"]
            # A second host: a sidecar that waits for a coordinator, for pushes that are their own.
            _, alone_socket = alone.sidecar("s1")
            alone_engine = alone.engine(alone_socket, "b", good)
            directories = {}
            for number, (label, (spoil, _)) in enumerate(CHECKPOINTS.items()):
                directories[label] = tensors.make(fleet.path(f"bad{number}"), 2)
                spoil(directories[label])
            nothing = fleet.path("nothing")  # may not be made
            status = fleet.state()
            closed = [d for d in directories.values() if os.path.exists(d) and not os.access(d, os.R_OK)]
            for directory in closed:
                os.chmod(directory, 0o700)
            before = everything_below(fleet.directory, alone.directory)
            for directory in closed:
                os.chmod(directory, 0)

            commands = {
                "inspect": lambda d: run(fleet, "inspect", d),
                "plan": lambda d: run(fleet, "plan", d),
                "push": lambda d: run(fleet, "push", d, "--coordinator", fleet.address),
                "trainer": lambda d: run(fleet, "trainer", "--checkpoint", d, "--set", f"run_dir={nothing}",
                                         "--set", f"state_dir={nothing}"),
                "engine": lambda d: run(fleet, "engine", "--sidecar", socket, "--replica", "c", "--checkpoint", d),
                "push ": lambda d: run(alone, "push", d, "--coordinator", alone.address),
            }
            # A push without a coordinator first looks for one, for seconds: all of them at once.
            with concurrent.futures.ThreadPoolExecutor(len(CHECKPOINTS) + 4) as pool:
                ran = {(label, command): pool.submit(do, directories[label])
                       for command, do in reversed(commands.items()) for label in CHECKPOINTS}
            for (label, command), done in ran.items():
                with self.subTest(label=label, command=command):
                    self.one_line(label, done.result(), [directories[label], *CHECKPOINTS[label][1]], command.strip())

            for directory in closed:
                os.chmod(directory, 0o700)
            self.assertEqual(fleet.state(), status)
            self.assertEqual(everything_below(fleet.directory, alone.directory), before)
            self.assertFalse(os.path.exists(nothing))
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 0, answer)
            self.assertEqual([r["version"] for r in answer["result"]["ranks"]], [version])
            code, answer = alone.ask("status", address=f"ipc://{alone.run_dir}/s1.control")
            self.assertEqual((answer["result"]["target"], answer["result"]["fence_epoch"]), ("0.0", 0), answer)
            code, answer = fleet.ask("push", good)
            self.assertEqual(code, 0, answer)
            for process in (engine, alone_engine):
                code, said = fleet.stop(process)
                self.assertEqual(code, 0, said)
                self.assertIn('"torn":0', said)
            self.assertEqual(fleet.stop(trainer)[0], 0)


# ---- configurations: the text of a file, and what the error has to name ----

CONFIGS = {
    ("sidecar", "versions_hold: 3\n"): [":1", "versions_hold", "unknown key", "versions_held"],
    ("sidecar", "name: a\ndevices:\n  cuont: 2\n"): [":3", "devices.cuont", "devices.count"],
    ("sidecar", "devices: 2\n"): [":1", "devices", "section", "devices.kind", "'2'"],
    ("sidecar", "devices:\n  count: two\n"): [":2", "devices.count", "1 to 64", "'two'"],
    ("sidecar", "devices:\n  count: 65\n"): ["devices.count", "1 to 64", "'65'"],
    ("sidecar", "devices:\n  count: [1, 2]\n"): [":2", "devices.count", "list"],
    ("sidecar", "devices:\n  kind: unifyed\n"): ["devices.kind", "unified", "separate", "unifyed"],
    ("sidecar", "devices:\n  buffer_bytes: 1KiB\n"): ["devices.buffer_bytes", "1MiB", "8GiB", "1KiB"],
    ("sidecar", "versions_held: 1\n"): ["versions_held", "2 to 16", "'1'"],
    ("sidecar", "versions_held: -1\n"): ["versions_held", "2 to 16", "'-1'"],
    ("sidecar", "host_memory: lots\n"): ["host_memory", "64MiB", "'lots'"],
    ("sidecar", "heartbeat:\n  interval: 5\n"): ["heartbeat.interval", "500ms"],
    ("sidecar", "heartbeat:\n  interval: 2s\n  deadline: 3s\n"): ["heartbeat.deadline", "twice", "2000 ms", "3000 ms"],
    ("sidecar", "name: a\nname: b\n"): [":2", "'name'", "twice"],
    ("sidecar", "name: a/b\n"): [":1", "name", "'/'", "a/b"],
    ("sidecar", "name:\n"): [":1", "'name'", "no value"],
    ("sidecar", "name: 'a\n"): ["'name'", "quotation mark"],
    ("sidecar", "name: [a\n"): ["name", "list"],
    ("sidecar", "\tname: a\n"): [":1", "key: value"],
    ("sidecar", "log: {level: info\n"): ["not YAML"],
    ("sidecar", "name: a: b\n"): [":1", "not YAML"],
    ("sidecar", "name: &x a\n"): [":1", "anchor"],
    ("sidecar", "just words\n"): [":1", "key: value"],
    ("sidecar", "name: a\n---\nname: b\n"): ["more than one"],
    ("sidecar", "coordinator: tcp://10.1.2.3:5000\n"): ["coordinator", "tcp://10.1.2.3:5000", "wsync keys init"],
    ("sidecar", "coordinator: udp://x\n"): ["coordinator", "udp://x", "ipc://"],
    ("sidecar", "data_address: tcp://0.0.0.0:0\n"): ["data_address", "tcp://0.0.0.0:0", "without keys"],
    ("sidecar", "run_dir: here\n"): ["run_dir", "absolute", "'here'"],
    ("sidecar", "run_dir: /%s\n" % ("x" * 90)): ["run_dir", "72 bytes", "91 bytes"],
    ("trainer", "listen: tcp://example.org:5000\n"): ["listen", "tcp://example.org:5000", "wsync keys init"],
    ("trainer", "listen: tcp://127.0.0.1:70000\n"): ["listen", "70000", "65535"],
    ("trainer", "commit: most\n"): ["commit", "all, each or quorum:N", "'most'"],
    ("trainer", "commit: quorum:0\n"): ["commit", "quorum:N", "'quorum:0'"],
    ("trainer", "bucket_bytes: 1500KiB\n"): ["bucket_bytes", "multiple of 1048576", "1536000"],
    ("trainer", "take_over: yes\n"): ["take_over", "true or false", "'yes'"],
    ("trainer", "arenas: 0\n"): ["arenas", "3 to 16", "'0'"],
    ("trainer", "deadlines:\n  publish: 2d\n"): ["deadlines.publish", "'2d'"],
    ("trainer", "log:\n  level: loud\n"): ["log.level", "loud", "debug"],
    ("trainer", "versions_held: 2\n"): ["versions_held", "unknown key"],
}

NONE = "/nonexistent"
ARGUMENTS = {
    (): ["subcommand"],
    ("staus",): ["'staus'", "status"],
    ("push",): ["DIR", "required"],
    ("push", NONE): [NONE, "No such file"],
    ("push", NONE, "--step", "many"): ["--step", "many"],
    ("push", NONE, "--step", "-1"): ["--step", "-1", "4611686018427387903"],
    ("push", NONE, "--step", "0"): ["--step", "0", "1"],
    ("push", NONE, "--step", "4611686018427387904"): ["--step", "4611686018427387903"],
    ("push", NONE, "--timeout", "never"): ["--timeout", "above 0", "'never'"],
    ("status", "--timeout", "-1"): ["--timeout", "above 0", "'-1'"],
    ("status", "--timeout", "0"): ["--timeout", "above 0", "'0'"],
    ("status", "--timeuot", "1"): ["--timeuot", "--timeout"],
    ("status", "extra"): ["extra"],
    ("status", "--coordinator", "control"): ["--coordinator", "'control'", "ipc:///"],
    ("verify", "--coordinator", "ipc://relative"): ["--coordinator", "ipc://relative"],
    ("rollback", "--to", "three"): ["'three'", "epoch.step"],
    ("inspect",): ["DIR", "required"],
    ("inspect", "/tmp", "/tmp"): ["/tmp"],
    ("plan", NONE): [NONE, "no such directory"],
    ("plan", NONE, "--devices", "65"): ["--devices", "65", "64"],
    ("plan", NONE, "--versions-held", "1"): ["--versions-held", "2"],
    ("trainer", "-c", NONE): [NONE, "config file", "No such file"],
    ("trainer", "-c", "/tmp"): ["/tmp", "YAML"],
    ("trainer", "--set", "arenas"): ["--set", "arenas", "key=value"],
    ("trainer", "--set", "arena=1"): ["--set", "arena", "unknown key", "arenas"],
    ("trainer", "--set", "arenas=many"): ["--set", "arenas", "3 to 16", "'many'"],
    ("trainer", "--checkpoint", NONE): [NONE, "no such directory"],
    ("trainer", "--log-level", "loud"): ["loud", "warning"],
    ("trainer", "--log-format", "xml"): ["xml", "json"],
    ("sidecar", "--set", "name"): ["--set", "name", "key=value"],
    ("sidecar", "--set", "versions_held=1"): ["--set", "versions_held", "2 to 16"],
    ("sidecar", "--conf", NONE): ["--conf", "--config"],
    ("engine",): ["--model", "--checkpoint"],
    ("engine", "--checkpoint", "GOOD", "--weights", "none"): ["sidecar", "weights"],
    ("engine", "--sidecar", "here", "--checkpoint", "GOOD"): ["'here'", "absolute"],
    ("engine", "--sidecar", NONE, "--checkpoint", "GOOD", "--rank", "2", "--world-size", "2"): ["rank 2", "2 ranks"],
    ("engine", "--sidecar", NONE, "--checkpoint", "GOOD", "--rank", "x"): ["--rank", "x"],
    ("engine", "--sidecar", NONE, "--checkpoint", "GOOD", "--weights", "some"): ["--weights", "some", "load"],
    ("engine", "--sidecar", NONE, "--checkpoint", "GOOD", "--adopt", "--whole"): ["--adopt", "--whole"],
    ("make-checkpoint",): ["DIR", "required"],
    ("make-checkpoint", NONE + "/x", "--size", "big"): ["--size", "'big'"],
    ("make-checkpoint", NONE + "/x", "--size", "1B"): ["1B", "1MiB"],
    ("completion", "tcsh"): ["'tcsh'", "bash"],
    ("doctor", "--bad"): ["--bad"],
}


class BadWords(unittest.TestCase):
    """Configurations, settings and arguments."""

    def refused(self, fleet, arguments, words):
        done = run(fleet, *arguments)
        about = f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        self.assertEqual((done.returncode, done.stdout), (2, ""), about)
        self.assertEqual(len(done.stderr.splitlines()), 1, about)
        for word in words:
            self.assertIn(word, done.stderr, about)
        said = run(fleet, *arguments, "--json")  # the same in the documented form
        if arguments:
            answer = validate(said.args, said.stdout)
            self.assertEqual((said.returncode, said.stderr, answer["ok"]), (2, "", False), about)
            self.assertIn(answer["error"]["code"], ("invalid_input", "not_found"), about)
            self.assertIn(answer["error"]["message"], done.stderr)
            self.assertEqual(answer["command"], "" if arguments[0] == "staus" else arguments[0])

    def check(self, cases):
        with Fleet(WSYNC) as fleet:
            for name in ("WSYNC_RUN_DIR", "WSYNC_STATE_DIR"):  # they rule over a file
                fleet.environment.pop(name)
            good = tensors.make(fleet.path("GOOD"), 1)
            before = everything_below(fleet.directory)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                ran = [(c, pool.submit(self.refused, fleet, [good if a == "GOOD" else a for a in c], words))
                       for c, words in cases.items()]
            for arguments, done in ran:
                with self.subTest(arguments=arguments):
                    done.result()
            self.assertEqual(everything_below(fleet.directory), before)
            self.assertFalse(os.path.exists(fleet.run_dir))

    def test_arguments(self):
        self.check(ARGUMENTS)

    def test_configurations(self):
        with Fleet(WSYNC) as files:
            cases = {}
            for number, ((command, content), words) in enumerate(CONFIGS.items()):
                path = files.path(f"{number}.yaml")
                with open(path, "w", encoding="utf-8") as out:
                    out.write(content)
                cases[(command, "-c", path)] = [path, *words]
            if os.geteuid() != 0:
                os.chmod(path, 0)
                cases[(command, "-c", path)] = [path, "Permission denied"]
            self.check(cases)

    def test_settings_of_the_environment(self):
        with Fleet(WSYNC) as fleet:
            fleet.environment["WSYNC_DEVICES_COUNT"] = "none"
            self.refused(fleet, ["sidecar"], ["WSYNC_DEVICES_COUNT", "1 to 64", "'none'"])


if __name__ == "__main__":
    unittest.main()
