"""`wsync patch` on checkpoint directories: what is applied is the target bit for bit, and whatever goes wrong is named, leaves nothing
behind and changes nothing."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

import tensors
from disc import Disc
from fleet import DEADLINE_S, Fleet
from schema import validate
from tensors import A0, B0, FIRST, SECOND, SHARDS

WSYNC = sys.argv.pop()
SMALL_BUCKET = "1MiB"
SIGINT_BIT = 1 << (signal.SIGINT - 1)


def changed_copy(source, target, share, seed):
    """A copy of a checkpoint in which this share of the bfloat16 elements, chosen at random, has another bit."""
    shutil.copytree(source, target)
    chosen = random.Random(seed)
    for name in sorted(os.listdir(target)):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(target, name)
        with open(path, "rb") as file:
            data = bytearray(file.read())
        begin = 8 + int.from_bytes(data[:8], "little")
        elements = (len(data) - begin) // 2
        for element in chosen.sample(range(elements), max(1, int(elements * share))):
            data[begin + 2 * element] ^= 1 << chosen.randrange(8)
        with open(path, "wb") as file:
            file.write(data)


def contents(directory):
    """Every tensor of a checkpoint with its type, shape and bytes, whatever the files."""
    found = {}
    for name in os.listdir(directory):
        if name.endswith(".safetensors"):
            header, data = tensors.read_file(os.path.join(directory, name))
            for tensor, entry in header.items():
                if tensor != "__metadata__":
                    begin, end = entry["data_offsets"]
                    found[tensor] = entry["dtype"], entry["shape"], data[begin:end]
    return found


class Patch(unittest.TestCase):
    def setUp(self):
        self.fleet = Fleet(WSYNC)
        self.fleet.__enter__()
        self.addCleanup(self.fleet.__exit__, None, None, None)

    def path(self, name):
        return self.fleet.path(name)

    def run_patch(self, *arguments):
        """The exit code, and the object that --json prints."""
        done = subprocess.run([WSYNC, "patch", *arguments, "--json"], env=self.fleet.environment, text=True, capture_output=True,
                              timeout=DEADLINE_S)
        return done.returncode, validate(done.args, done.stdout)

    def made(self, base, target, name, *more):
        code, answer = self.run_patch("make", base, target, "-o", self.path(name), *more)
        self.assertEqual(code, 0, answer)
        return answer["result"]

    def refused(self, code, kind, words, *arguments):
        """The command fails in this way, and the files are as before."""
        before = self.files()
        found, answer = self.run_patch(*arguments)
        self.assertEqual((found, answer.get("error", {}).get("code")), (code, kind), answer)
        for word in words if isinstance(words, tuple) else (words,):
            self.assertIn(word, answer["error"]["message"])
        self.assertEqual(self.files(), before)

    def files(self):
        return sorted(os.path.join(folder, name) for folder, _, names in os.walk(self.fleet.directory) for name in names)

    def checkpoints(self, share=0.01, size="4MiB"):
        one, two = self.fleet.checkpoint("one", 1, size=size), self.path("two")
        changed_copy(one, two, share, 7)
        return one, two

    def test_what_is_applied_is_the_target(self):
        for share in (0.0001, 0.01, 0.3, 1):
            with self.subTest(share):
                name = f"s{share}"
                one, two = self.fleet.checkpoint(f"{name}-one", 1, size="4MiB"), self.path(f"{name}-two")
                changed_copy(one, two, share, 3)
                made = self.made(one, two, f"{name}.patch", "--bucket", SMALL_BUCKET)
                self.assertEqual(made["bytes"], os.path.getsize(made["patch"]))
                self.assertFalse(made["equal"])
                code, shown = self.run_patch("inspect", made["patch"], "--tensors")
                self.assertEqual(code, 0, shown)
                shown = shown["result"]
                self.assertEqual({key: shown[key] for key in made}, made)
                self.assertEqual(len(shown["tensor_list"]), made["changed_tensors"])
                for field in ("blocks", "elements"):
                    self.assertEqual(sum(tensor[field] for tensor in shown["tensor_list"]), made[field])
                code, applied = self.run_patch("apply", one, made["patch"], "-o", self.path(f"{name}-out"))
                self.assertEqual(code, 0, applied)
                self.assertEqual(contents(self.path(f"{name}-out")), contents(two))
                self.assertEqual(applied["result"]["content_digest"], made["target_digest"])
                with open(os.path.join(one, "config.json"), "rb") as a, open(os.path.join(self.path(f"{name}-out"), "config.json"), "rb") as b:
                    self.assertEqual(a.read(), b.read())
                # And what `inspect --digest` says of the directory.
                done = subprocess.run([WSYNC, "inspect", "--digest", "--json", self.path(f"{name}-out")], text=True,
                                      capture_output=True, timeout=DEADLINE_S)
                self.assertEqual(validate(done.args, done.stdout)["result"]["content_digest"], made["target_digest"])

    def test_equal_checkpoints(self):
        one = self.fleet.checkpoint("one", 1, size="1MiB")
        made = self.made(one, one, "p")
        self.assertEqual((made["equal"], made["blocks"], made["base_digest"]), (True, 0, made["target_digest"]))
        said = subprocess.run([WSYNC, "patch", "inspect", made["patch"]], text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertIn("no blocks: base and target are equal", said.stdout)
        code, answer = self.run_patch("apply", one, made["patch"], "-o", self.path("out"))
        self.assertEqual(code, 0, answer)
        self.assertEqual(contents(self.path("out")), contents(one))

    def test_another_layout(self):
        one = tensors.make(self.path("one"), 1)
        two = tensors.make(self.path("two"), 2)
        made = self.made(one, two, "p")
        cases = {
            "renamed": (lambda fields: fields.update({A0 + "x": fields.pop(A0)}), (f"has no {A0}", f"nearest name there is {A0}x")),
            "reshaped": (lambda fields: fields[B0].update(shape=[48, 32]), (f"{B0} BF16 [32, 48]", f"{B0} BF16 [48, 32]")),
            "retyped": (lambda fields: fields[B0].update(dtype="F16"), (f"{B0} BF16 [32, 48]", f"{B0} F16 [32, 48]")),
        }
        for name, (change, words) in cases.items():
            with self.subTest(name):
                other = self.path(name)
                shutil.copytree(two, other)
                fields, size = tensors.layout(SHARDS[FIRST])
                change(fields)
                tensors.write_file(os.path.join(other, FIRST), fields, tensors.data_of(size, 2))
                names = {tensor: FIRST for tensor in fields} | {tensor: SECOND for tensor in SHARDS[SECOND]}
                tensors.write_index(other, names)
                self.refused(2, "invalid_input", words, "make", one, other, "-o", self.path("q"))
                self.refused(2, "invalid_input", words, "apply", other, made["patch"], "-o", self.path("out"))
        # One that has more.
        other = self.path("more")
        shutil.copytree(two, other)
        fields, size = tensors.layout({**SHARDS[FIRST], "model.layers.0.extra": [2, 2]})
        tensors.write_file(os.path.join(other, FIRST), fields, tensors.data_of(size, 2))
        tensors.write_index(other, {tensor: FIRST for tensor in fields} | {tensor: SECOND for tensor in SHARDS[SECOND]})
        self.refused(2, "invalid_input", "has no model.layers.0.extra", "make", one, other, "-o", self.path("q"))

    def test_another_base(self):
        one, two = self.checkpoints()
        made = self.made(one, two, "p")
        three = self.path("three")
        changed_copy(one, three, 0.0001, 9)
        code, answer = self.run_patch("make", three, two, "-o", self.path("q"))
        self.assertEqual(code, 0, answer)
        self.refused(1, "digest_mismatch", (answer["result"]["base_digest"], made["base_digest"], "is not the base of this patch"),
                     "apply", three, made["patch"], "-o", self.path("out"))
        self.refused(1, "digest_mismatch", "it is what the patch leads to", "apply", two, made["patch"], "-o", self.path("out"))

    def test_damaged_and_truncated_patches(self):
        one, two = self.checkpoints(share=1)
        made = self.made(one, two, "p", "--bucket", SMALL_BUCKET)
        self.assertGreaterEqual(made["buckets"], 4)
        with open(made["patch"], "rb") as file:
            data = file.read()
        spoilt = self.path("spoilt")

        def spoil(content, code, kind, words):
            with open(spoilt, "wb") as file:
                file.write(content)
            self.refused(code, kind, words, "inspect", spoilt)
            self.refused(code, kind, words, "apply", one, spoilt, "-o", self.path("out"))

        last = len(data) - 1
        spoil(data[:last] + bytes([data[last] ^ 1]), 2, "invalid_input",
              (spoilt, f"bucket {made['buckets']} of {made['buckets']} of the patch is damaged"))
        middle = len(data) // 2
        spoil(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1:], 2, "invalid_input", "of the patch is damaged")
        spoil(data[:60] + bytes([data[60] ^ 1]) + data[61:], 2, "invalid_input", "the manifest of the patch is damaged")
        for size in (0, 7, 20, 100, 3000, middle, last):
            spoil(data[:size], 2, "invalid_input", spoilt)
        spoil(data[:last], 2, "invalid_input", "the patch is truncated")
        spoil(data + b"x", 2, "invalid_input", "has bytes behind its end")
        spoil(data[:8] + b"\2" + data[9:], 2, "invalid_input", "version 2 of the format")
        spoil(b"something else", 2, "invalid_input", "this is not a patch")
        self.refused(2, "not_found", "none", "inspect", self.path("none"))
        self.refused(2, "invalid_input", "it is not a file", "inspect", one)

    def test_nothing_is_overwritten(self):
        one, two = self.checkpoints()
        made = self.made(one, two, "p")
        self.refused(2, "invalid_input", "exists already", "make", one, two, "-o", made["patch"])
        self.refused(2, "invalid_input", "exists already", "apply", one, made["patch"], "-o", two)
        self.refused(2, "invalid_input", "exists already", "apply", one, made["patch"], "-o", one)
        self.refused(2, "invalid_input", "--bucket", "make", one, two, "-o", self.path("q"), "--bucket", "much")
        for size in ("1KiB", "0", "0MiB", "9GiB"):
            self.refused(2, "invalid_input", f"--bucket: expected 1MiB to 8GiB, found {size}", "make", one, two, "-o", self.path("q"),
                         "--bucket", size)

    def test_a_folder_that_is_not_there(self):
        one, two = self.checkpoints()
        made = self.made(one, two, "p")
        for output, words in ((self.path("none/q"), "does not exist: create that directory"), (made["patch"] + "/q", "is no directory")):
            for command in (("make", one, two), ("apply", one, made["patch"])):
                self.refused(2, "invalid_input", (f"--output: {output} cannot be written, because {os.path.dirname(output)} {words}",),
                             *command, "-o", output)

    def test_a_full_disc(self):
        one, two = self.checkpoints(share=1)
        made = self.made(one, two, "p")
        with Disc(self.path("disc")) as disc:
            self.refused(1, "resource_exhausted", "cannot reserve", "make", one, two, "-o", os.path.join(disc.directory, "q"))
            self.refused(1, "resource_exhausted", "cannot reserve", "apply", one, made["patch"], "-o",
                         os.path.join(disc.directory, "out"))
            self.assertEqual(os.listdir(disc.directory), ["default"])

    def wait_while_running(self, process, is_there):
        """Waits for something that the process does. Returns false if it has ended without being seen to do so."""
        limit = time.monotonic() + DEADLINE_S
        while time.monotonic() < limit:
            if process.poll() is not None:
                return False
            if is_there():
                return True
        self.fail("the command neither worked nor ended")

    def interrupted(self, arguments, output, is_working):
        """Interrupts the command while it works, as often as is needed to meet it there. It ends with 130 and leaves nothing."""
        while True:
            process = subprocess.Popen([WSYNC, "patch", *arguments, "-o", output], env=self.fleet.environment, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if self.wait_while_running(process, lambda: is_working(process)):
                os.kill(process.pid, signal.SIGINT)
            said = process.communicate(timeout=DEADLINE_S)[1]
            if process.returncode != 0:
                break
            # It was done before the signal came.
            (shutil.rmtree if os.path.isdir(output) else os.remove)(output)
        self.assertEqual((process.returncode, said.count("\n")), (130, 1), said)
        self.assertIn("stopped by a signal", said)
        self.assertFalse([name for name in os.listdir(os.path.dirname(output)) if os.path.basename(output) in name])

    def handles_signals(self, process):
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
            caught = next((line for line in file if line.startswith("SigCgt:")), "SigCgt: 0")
        return int(caught.split()[1], 16) & SIGINT_BIT != 0

    def test_an_interrupted_command_leaves_nothing(self):
        one, two = self.checkpoints(size="64MiB", share=0.0001)
        os.mkdir(self.path("outputs"))
        self.interrupted(("make", one, two), self.path("outputs/q"), self.handles_signals)
        made = self.made(one, two, "p")
        self.interrupted(("apply", one, made["patch"]), self.path("outputs/checked"), self.handles_signals)
        self.interrupted(("apply", one, made["patch"]), self.path("outputs/written"),
                         lambda _: any(name.endswith(".tmp") for name in os.listdir(self.path("outputs"))))

    def test_a_killed_command_leaves_nothing_under_its_name(self):
        one, two = self.checkpoints(size="64MiB", share=0.0001)
        made = self.made(one, two, "p")
        os.mkdir(self.path("outputs"))
        output = self.path("outputs/out")
        met = False
        while not met:
            shutil.rmtree(output, ignore_errors=True)
            process = subprocess.Popen([WSYNC, "patch", "apply", one, made["patch"], "-o", output], env=self.fleet.environment,
                                       stdout=subprocess.DEVNULL)
            self.wait_while_running(process, lambda: os.listdir(self.path("outputs")))
            process.kill()
            process.wait()
            met = process.returncode == -signal.SIGKILL and not os.path.exists(output)
        # What it has begun is in nobody's way.
        code, answer = self.run_patch("apply", one, made["patch"], "-o", output)
        self.assertEqual(code, 0, answer)
        self.assertEqual(contents(output), contents(two))


if __name__ == "__main__":
    unittest.main()
