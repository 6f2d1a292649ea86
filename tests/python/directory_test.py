"""Directories of published weights: what is written and read, and what a killed writer, a full disc and other programs leave."""
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import numpy as np
import package_fleet
import wsync
import wsync.directory
from package_fleet import DEADLINE_S, PackageFleet, bf16, empty_like, equal, until
from wsync._native import core

# Kills itself at the step of a write that the second argument counts, in its second version.
KILLED = """
import sys, numpy as np, wsync.directory
from wsync._native import core
writer = wsync.directory.Writer(sys.argv[1], keep=1, shard_bytes=4096, model_files=sys.argv[3])
first = writer.publish({"a": np.full(2048, 1, np.float32), "b": np.full(2048, 1, np.float32)})
core.arm_fail_point("file_written", int(sys.argv[2]))
writer.publish({"a": np.full(2048, 2, np.float32), "b": np.full(2048, 2, np.float32)})
print("survived")
"""
# Writes one version within a limit of the bytes of a file, and says how that ended.
LIMITED = """
import resource, sys, numpy as np, wsync, wsync.directory
writer = wsync.directory.Writer(sys.argv[1])
writer.publish({"a": np.zeros(8, np.float32)})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    writer.publish({"a": np.zeros(8192, np.float32)})
except wsync.Error as failure:
    print(failure)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
print(writer.publish({"a": np.ones(8, np.float32)}).path)
"""


def weights_of(value):
    return {"model.embed_tokens.weight": bf16(np.full((16, 8), value, np.float32)),
            "model.norm.weight": np.full(8, value, np.float32), "lm_head.weight": np.full((), value, np.float16)}


def write_safetensors(path, tensors, metadata=None):
    """A file of F32 tensors as any other program writes it."""
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    write_header(path, header, b"".join(a.tobytes() for a in tensors.values()))


def write_header(path, header, data=b""):
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def write_text(path, text):
    """At once, as a reader may look at any moment."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


class Directories(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="wsync-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def names(self):
        return sorted(os.listdir(self.folder))

    def latest(self):
        with open(self.path("latest"), encoding="utf-8") as file:
            return file.read()

    def run_program(self, text, *arguments):
        return subprocess.run([sys.executable, "-c", text, self.folder, *arguments], text=True, capture_output=True,
                              timeout=DEADLINE_S, check=False)


class WrittenAndRead(Directories):
    def test_what_is_written_is_read(self):
        with wsync.directory.Writer(self.folder) as writer:
            written = writer.publish(weights_of(3), step=12)
            self.assertEqual(self.names(), [".writer.lock", "latest", "weight_v000012"])
        self.assertEqual(written.path, self.path("weight_v000012"))
        self.assertEqual(self.latest(), "weight_v000012")
        read = wsync.directory.read(self.folder)
        equal(self, read.tensors, weights_of(3))
        self.assertEqual({name: array.dtype_name for name, array in read.tensors.items()},
                         {"model.embed_tokens.weight": "BF16", "model.norm.weight": "F32", "lm_head.weight": "F16"})
        self.assertEqual((read.version, read.digest, read.proven), (wsync.Version(1, 12), written.digest, True))

    def test_shards_have_an_index_and_the_models_files_are_there(self):
        model = self.path("model")
        os.mkdir(model)
        for name in ("config.json", "tokenizer.model", "pytorch_model.bin.index.json", "old.safetensors"):
            write_text(os.path.join(model, name), name)
        folder = self.path("out")
        with wsync.directory.Writer(folder, shard_bytes=100, model_files=model) as writer:
            written = writer.publish(weights_of(1))
        with open(os.path.join(written.path, "model.safetensors.index.json"), encoding="utf-8") as file:
            index = json.load(file)
        files = sorted(set(index["weight_map"].values()))
        self.assertEqual(files, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"])
        self.assertEqual(index["metadata"]["total_size"], 16 * 8 * 2 + 8 * 4 + 2)
        self.assertEqual(sorted(os.listdir(written.path)),
                         ["config.json", *files, "model.safetensors.index.json", "tokenizer.model"])
        equal(self, wsync.directory.read(folder).tensors, weights_of(1))

    def test_the_oldest_go_and_latest_stays(self):
        with wsync.directory.Writer(self.folder, keep=2) as writer:
            versions = [writer.publish(weights_of(step), step=step).version for step in (1, 2, 3)]
            self.assertEqual(self.names(), [".writer.lock", "latest", "weight_v000002", "weight_v000003"])
            writer.roll_back(versions[1])
            self.assertEqual(self.latest(), "weight_v000002")
            equal(self, wsync.directory.read(self.folder).tensors, weights_of(2))
            with self.assertRaisesRegex(wsync.Error, "no directory of version 1.1 any more; `latest` is weight_v000002"):
                writer.roll_back(versions[0])
        with wsync.directory.Writer(self.folder, keep=1) as writer:
            self.assertEqual(str(writer.publish(weights_of(4), step=1).version), "2.1")
            # Not again a number that a reader may know with other bytes.
            self.assertEqual(self.names(), [".writer.lock", "latest", "weight_v000004"])

    def test_a_reader_of_a_removed_directory_reads_on(self):
        with wsync.directory.Writer(self.folder, keep=1) as writer:
            writer.publish(weights_of(1))
            raw = core.WeightReader(self.folder)
            writer.publish(weights_of(2))
        self.assertEqual(self.names(), ["latest", "weight_v000002"])
        arrays = {name: np.empty(shape, {"BF16": np.uint16, "F32": np.float32, "F16": np.float16}[dtype])
                  for name, dtype, shape in raw.tensors()}
        self.assertEqual(raw.read([array.ctypes.data for array in arrays.values()]), raw.proof()[2])
        equal(self, arrays, weights_of(1))

    def test_one_writer_at_a_time(self):
        with wsync.directory.Writer(self.folder):
            with self.assertRaisesRegex(wsync.Busy, "has another writer"):
                wsync.directory.Writer(self.folder)
        wsync.directory.Writer(self.folder).close()

    def test_the_highest_epoch_is_refused(self):
        os.mkdir(self.path("weight_v000001"))
        write_safetensors(self.path("weight_v000001", "model.safetensors"), {"a": np.zeros(1, np.float32)},
                          {"wsync.version": "4294967295.1", "wsync.digest": "0" * 32})
        for _ in range(2):  # the folder is not locked after that
            with self.assertRaisesRegex(wsync.InvalidInput, "weight_v000001: it is of version 4294967295.1, and no "
                                        "epoch is higher"):
                wsync.directory.Writer(self.folder)

    def test_the_highest_step(self):
        with wsync.directory.Writer(self.folder) as writer:
            self.assertEqual(writer.publish(weights_of(1), step=2**63 - 2).version.step, 2**63 - 2)
            self.assertEqual(writer.publish(weights_of(2)).version.step, 2**63 - 1)
            for step in (None, 2**63):
                with self.assertRaisesRegex(wsync.InvalidInput, f"step is {2**63}, expected 1 to {2**63 - 1}$"):
                    writer.publish(weights_of(3), step=step)
            self.assertEqual(self.latest(), f"weight_v{2**63 - 1}")

    def test_what_cannot_be_written_changes_nothing(self):
        with wsync.directory.Writer(self.folder) as writer:
            writer.publish(weights_of(1), step=5)
            for tensors, step, sentence in ((weights_of(2), 5, "expected more than 5"), ({"a": "text"}, 6, "tensor a is a str"),
                                            ({}, 6, "")):
                before = self.names()
                if tensors:
                    with self.assertRaisesRegex(wsync.InvalidInput, sentence):
                        writer.publish(tensors, step=step)
                self.assertEqual((self.names(), self.latest()), (before, "weight_v000005"))
        with self.assertRaisesRegex(wsync.Error, "closed"):
            writer.publish(weights_of(2))
        with self.assertRaisesRegex(wsync.NotFound, "No such file"):
            wsync.directory.Writer(self.path("no", "folder"))


class Guide(Directories):
    def test_the_programs_of_the_guide(self):
        guide = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "guides", "directory.md")
        with open(guide, encoding="utf-8") as file:
            write, follow = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
        model = self.path("model")
        os.mkdir(model)
        write_text(os.path.join(model, "config.json"), "{}")

        class Model:
            def state_dict(self):
                return weights_of(7)

            def load(self, tensors):
                self.loaded = tensors
                raise StopIteration  # it follows for ever

        run = {"model": Model(), "engine": Model(), "wsync": wsync}
        for program in (write, follow):
            program = program.replace("/nfs/run7", self.path("out")).replace("/models/base", model)
            try:
                exec(compile(program, guide, "exec"), run)
            except StopIteration:
                pass
        equal(self, run["engine"].loaded, weights_of(7))
        self.assertEqual(sorted(os.listdir(self.path("out", "weight_v000120"))), ["config.json", "model.safetensors"])


class Killed(Directories):
    def test_sigkill_at_each_step_of_a_write(self):
        model = self.path("model")
        os.mkdir(model)
        write_text(os.path.join(model, "config.json"), "{}")
        for hits in range(1, 200):
            self.folder = os.path.join(os.path.dirname(model), f"killed{hits}")
            done = self.run_program(KILLED, str(hits), model)
            read = wsync.directory.read(self.folder)  # complete and proven, or an exception
            values = {float(array[0]) for array in read.tensors.values()}
            self.assertIn(values, ({1.0}, {2.0}), hits)
            if done.returncode == 0:
                break
            self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
            # The next writer removes what is left, and goes on.
            with wsync.directory.Writer(self.folder, keep=1) as writer:
                self.assertEqual([n for n in self.names() if n.endswith(".tmp")], [], hits)
                writer.publish({"a": np.full(8, 3, np.float32)})
                self.assertEqual(self.names(), [".writer.lock", "latest", self.latest()], hits)
            self.assertEqual(wsync.directory.read(self.folder).tensors["a"][0], 3)
        self.assertEqual(done.stdout, "survived\n")
        self.assertEqual(values, {2.0})
        self.assertGreater(hits, 20)


class FullDiscs(Directories):
    def test_a_limit_of_the_size_of_a_file(self):
        done = self.run_program(LIMITED)
        self.assertEqual(done.returncode, 0, done.stderr)
        sentence, path = done.stdout.splitlines()
        self.assertRegex(sentence, rf"cannot write {self.folder}/weight_v000002: it needs 32768 bytes, \d+ bytes are free; "
                         "`latest` is weight_v000001 as before: .*File too large")
        self.assertEqual(path, self.path("weight_v000002"))
        self.assertEqual(self.names(), ["latest", "weight_v000001", "weight_v000002"])

    def test_a_full_file_system(self):
        disc = self.path("disc")
        os.mkdir(disc)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "wsync-test", disc], capture_output=True, text=True,
                                 check=False)
        if mounted.returncode != 0:
            self.skipTest(f"no file system can be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", disc], check=True)
        with wsync.directory.Writer(disc) as writer:
            writer.publish({"a": np.zeros(1000, np.float32)})
            before = sorted(os.listdir(disc))
            with self.assertRaisesRegex(wsync.ResourceExhausted, rf"cannot write {disc}/weight_v000002: it needs 400000 bytes, "
                                        r"\d+ bytes are free; `latest` is weight_v000001 as before"):
                writer.publish({"a": np.zeros(100_000, np.float32)})
            self.assertEqual(sorted(os.listdir(disc)), before)
            # Enough for the tensors alone, and not for the files with their headers: seen only by writing.
            with open(os.path.join(disc, "filler"), "wb") as file:
                space = os.statvfs(disc)
                file.write(bytes((space.f_bavail - 3) * space.f_frsize))
            with self.assertRaisesRegex(wsync.ResourceExhausted, "cannot write .*: it needs 12288 bytes, 12288 bytes are free"):
                writer.publish({"a": np.zeros(3072, np.float32)})
            os.remove(os.path.join(disc, "filler"))
            self.assertEqual(sorted(os.listdir(disc)), before)
            writer.publish({"a": np.ones(1000, np.float32)})
        self.assertEqual(wsync.directory.read(disc).tensors["a"][0], 1)


class OfOthers(Directories):
    def other(self, number, value, latest=None):
        directory = self.path(f"weight_v{number:06d}")
        os.mkdir(directory)
        write_safetensors(os.path.join(directory, "model.safetensors"), {"a": np.full(8, value, np.float32)}, {"format": "pt"})
        if latest == "file":
            write_text(self.path("latest"), f"weight_v{number:06d}\n")
        elif latest == "link":
            os.symlink(f"weight_v{number:06d}", self.path("latest.new"))
            os.replace(self.path("latest.new"), self.path("latest"))

    def test_they_are_read_and_not_proven(self):
        with self.assertRaisesRegex(wsync.NotFound, "no `latest` and no directory of the form weight_v000012"):
            wsync.directory.read(self.folder)
        for number, latest, expected in ((1, None, 1), (2, "file", 2), (3, None, 2), (4, "link", 4)):
            self.other(number, number, latest)
            read = wsync.directory.read(self.folder)
            self.assertEqual((read.tensors["a"][0], read.proven, read.version), (expected, False, None))

    def test_what_is_no_complete_directory_is_refused(self):
        self.other(1, 1)
        file = self.path("weight_v000001", "model.safetensors")
        os.truncate(file, os.path.getsize(file) - 4)
        with self.assertRaisesRegex(wsync.InvalidInput, "model.safetensors"):
            wsync.directory.read(self.folder)
        for text in ("../elsewhere", "/weight_v000001", ""):
            write_text(self.path("latest"), text)
            with self.assertRaisesRegex(wsync.InvalidInput, "expected the name of a directory beside it"):
                wsync.directory.read(self.folder)
        write_text(self.path("latest"), "weight_v000009")
        with self.assertRaises(wsync.NotFound):
            wsync.directory.read(self.folder)

    def test_changes_to_other_weights_are_refused(self):
        self.other(1, 1)
        os.rename(self.path("weight_v000001", "model.safetensors"), self.path("weight_v000001", "model-00000-of-00001.safetensors"))
        write_text(self.path("weight_v000001", "model.safetensors.index.json"),
                   json.dumps({"metadata": {"version": "000001", "base_version": "000000", "delta_encoding": "xor"},
                               "weight_map": {"a": "model-00000-of-00001.safetensors"}}))
        with self.assertRaisesRegex(wsync.InvalidInput, "changes to other weights .delta_encoding 'xor'.; expected whole weights"):
            wsync.directory.read(self.folder)


class Followed(Directories):
    def setUp(self):
        super().setUp()
        self.warnings = []
        handler = logging.Handler()
        handler.emit = lambda record: self.warnings.append(record.getMessage())
        logger = logging.getLogger("wsync.directory")
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        logger.addHandler(logging.NullHandler())  # for followers that outlive their test, and its folder

    def followed(self):
        """What a follower has got, in a list that grows."""
        got = []

        def loop():
            for weights in wsync.directory.follow(self.folder, poll=0.01, timeout=DEADLINE_S):
                got.append(weights)

        threading.Thread(target=loop, daemon=True).start()
        return got

    def test_latest_decides_an_older_one_too(self):
        got = self.followed()
        with wsync.directory.Writer(self.folder) as writer:
            first = writer.publish(weights_of(1)).version
            until(lambda: len(got) == 1, "the first")
            writer.publish(weights_of(2))
            until(lambda: len(got) == 2, "the second")
            writer.roll_back(first)
            until(lambda: len(got) == 3, "the first again")
        for weights, value in zip(got, (1, 2, 1)):
            equal(self, weights.tensors, weights_of(value))
        self.assertEqual(self.warnings, [])

    def test_other_bytes_are_refused_with_one_warning_until_they_are_mended(self):
        got = self.followed()
        with wsync.directory.Writer(self.folder) as writer:
            writer.publish(weights_of(1))
            until(lambda: len(got) == 1, "the first")
            # Damaged before `latest` names it, as on a disc that loses a write.
            damaged = writer.publish(weights_of(2))
            until(lambda: len(got) == 2, "the second")
            file = os.path.join(damaged.path, "model.safetensors")
            with open(file, "rb") as opened:
                good = opened.read()
            writer.publish(weights_of(3))
            until(lambda: len(got) == 3, "the third")
            with open(file, "r+b") as opened:
                opened.seek(-1, os.SEEK_END)
                opened.write(b"\x55")
            writer.roll_back(damaged.version)
            until(lambda: self.warnings, "a warning")
            self.assertRegex(self.warnings[0], rf"{damaged.path}: its bytes have the digest [0-9a-f]{{32}}, but its writer states "
                             rf"{damaged.digest} of version 1.2: a file was changed or damaged")
            with self.assertRaises(wsync.DigestMismatch):
                wsync.directory.read(self.folder)
            with open(file + ".new", "wb") as opened:
                opened.write(good)
            os.replace(file + ".new", file)
            until(lambda: len(got) == 4, "the mended one")
        equal(self, got[3].tensors, weights_of(2))
        self.assertEqual(len(self.warnings), 1, self.warnings)

    def test_a_look_opens_no_file_that_has_not_changed(self):
        with wsync.directory.Writer(self.folder) as writer:
            written = writer.publish(weights_of(1))
        opened, looks = [], []
        reader, look = core.WeightReader, core.look_at_latest_weights
        with mock.patch.object(core, "WeightReader", lambda folder: (opened.append(folder), reader(folder))[1]), \
                mock.patch.object(core, "look_at_latest_weights", lambda folder: (looks.append(folder), look(folder))[1]):
            got = self.followed()
            until(lambda: len(got) == 1, "the first")
            until(lambda: len(looks) > 20, "20 looks")
            self.assertEqual(len(opened), 1)
            os.utime(os.path.join(written.path, "model.safetensors"))
            until(lambda: len(opened) == 2, "a look at the changed file")

    def test_bytes_that_are_not_proven_and_are_the_same_are_yielded_once(self):
        loaded, load = [], wsync.directory._load

        def counted(raw):
            weights = load(raw)
            loaded.append(os.path.basename(weights.path))
            return weights

        self.enterContext(mock.patch.object(wsync.directory, "_load", counted))
        got = self.followed()
        for number, value in ((1, 1), (2, 1), (3, 2)):
            count = len(got)
            os.mkdir(self.path(".new"))
            write_safetensors(self.path(".new", "model.safetensors"), {"a": np.full(8, value, np.float32)})
            os.rename(self.path(".new"), self.path(f"weight_v{number:06d}"))
            if number == 2:  # it has been read when the next one appears
                until(lambda: loaded == ["weight_v000001", "weight_v000002"], "the second is read")
            else:
                until(lambda: len(got) == count + 1, f"directory {number}")
        self.assertEqual([(os.path.basename(w.path), float(w.tensors["a"][0])) for w in got],
                         [("weight_v000001", 1.0), ("weight_v000003", 2.0)])

    def test_what_numpy_cannot_hold_does_not_end_the_iterator(self):
        with wsync.directory.Writer(self.folder) as writer:
            writer.publish(weights_of(1))
        got = self.followed()
        until(lambda: len(got) == 1, "the first")
        os.mkdir(self.path("weight_v000009"))
        write_header(self.path("weight_v000009", "model.safetensors"),
                     {"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}})
        write_text(self.path("latest"), "weight_v000009")
        until(lambda: self.warnings, "a warning")
        self.assertIn(r"tensor a has the shape [0, 4611686018427387904]", self.warnings[0])
        with self.assertRaises(wsync.InvalidInput):
            wsync.directory.read(self.folder)
        with wsync.directory.Writer(self.folder) as writer:
            writer.publish(weights_of(2))
        until(lambda: len(got) == 2, "the next one")

    def test_the_writer_is_faster_than_the_follower(self):
        """Directories vanish while they are read; each that is yielded is whole."""
        with wsync.directory.Writer(self.folder, keep=1) as writer:
            writer.publish(weights_of(1))
            ended = threading.Event()

            def write():
                step = 2
                while not ended.is_set():
                    writer.publish(weights_of(step % 64), step=step)
                    step += 1

            thread = threading.Thread(target=write)
            thread.start()
            try:
                count = 0
                for weights in wsync.directory.follow(self.folder, poll=0, timeout=DEADLINE_S):
                    values = {float(np.asarray(weights.tensors["model.norm.weight"]).min()),
                              float(np.asarray(weights.tensors["lm_head.weight"]).min())}
                    self.assertEqual(len(values), 1)
                    self.assertTrue(weights.proven)
                    count += 1
                    if count == 30:
                        break
            finally:
                ended.set()
                thread.join()
        self.assertEqual(count, 30)


class WithTheService(unittest.TestCase):
    """Both directions between this module and the processes of the service."""

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.folder = self.fleet.path("published")

    def engine(self, socket, **options):
        held = empty_like(package_fleet.weights_of(0))
        self.fleet.serve(wsync.Replica(socket, "r0", held, **options))
        return held

    def holds(self, held, weights):
        return all(np.array_equal(held[name], weights[name]) for name in weights)

    def test_a_sidecar_without_a_trainer_serves_what_python_writes(self):
        _, socket = self.fleet.sidecar("host", "--follow-directory", self.folder, "--set", "follow_interval=20ms")
        held = self.engine(socket)
        with wsync.directory.Writer(self.folder) as writer:
            first = writer.publish(package_fleet.weights_of(1), step=12)
            until(lambda: self.holds(held, package_fleet.weights_of(1)), "the first version")
            writer.publish(package_fleet.weights_of(2), step=13)
            until(lambda: self.holds(held, package_fleet.weights_of(2)), "the second version")
            writer.roll_back(first.version)
            until(lambda: self.holds(held, package_fleet.weights_of(1)), "the first version again")
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)

    def test_what_misses_a_deadline_is_tried_again(self):
        """Not a refusal for good: nothing of the directory is wrong."""
        self.fleet.environment["WSYNC_DEADLINES_STAGE"] = "1s"
        incidents = []

        def missed():
            code, answer = self.fleet.ask("status")
            incidents[:] = [i["text"] for i in answer["result"]["incidents"]] if code == 0 else []
            return any("weight_v000002 is not served" in text for text in incidents)

        def check(version, _):
            if len(checked) == 1 and not incidents:
                until(missed, "the deadline")
            checked.append(version)

        checked = []
        _, socket = self.fleet.sidecar("host", "--follow-directory", self.folder, "--set", "follow_interval=20ms")
        held = self.engine(socket, check_version=check)
        with wsync.directory.Writer(self.folder) as writer:
            for step in (1, 2):
                writer.publish(package_fleet.weights_of(step), step=step)
                until(lambda: self.holds(held, package_fleet.weights_of(step)), f"version {step}")
        self.assertTrue(incidents)

    def test_python_follows_what_a_trainer_of_the_service_writes(self):
        _, socket = self.fleet.sidecar()
        self.engine(socket)
        with self.fleet.publisher(**{"directory.publish": self.folder, "directory.shard_bytes": "1MiB"}) as publisher:
            followed = wsync.directory.follow(self.folder, poll=0.01, timeout=DEADLINE_S)
            for step in (12, 13):
                weights = package_fleet.weights_of(step)
                status = publisher.publish(weights, step=step).wait("committed", timeout=DEADLINE_S)
                found = next(followed)
                equal(self, found.tensors, weights)
                self.assertEqual((found.path, found.version, found.digest, found.proven),
                                 (os.path.join(self.folder, f"weight_v{step:06d}"), status.version, status.content_digest, True))


if __name__ == "__main__":
    unittest.main()
