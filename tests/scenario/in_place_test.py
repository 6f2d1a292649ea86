"""A sidecar that copies changes the copy that it has in place: its memory, a way back, readers, hangs, kills and damaged bytes."""
import ctypes
import glob
import hashlib
import json
import os
import signal
import sys
import unittest

import in_place_fleet
import tensors
from fleet import ASK_S, DEADLINE_S, short
from in_place_fleet import BESIDE, IN_PLACE

READER_LIBRARY = sys.argv.pop()
WSYNC = sys.argv.pop()


class InPlaceCase(in_place_fleet.InPlaceCase):
    wsync = WSYNC


class Memory(InPlaceCase):
    def grown(self, *settings):
        """Ten updates; what the sidecar holds then, and after a rollback, as shares of a model."""
        with self.fleet() as fleet:
            version = fleet.begin(sidecar=settings)
            model = fleet.model_bytes()
            for _ in range(10):
                before, version = version, fleet.updated(10000)
            self.assertTrue(fleet.said_by("s0")["can_roll_back"])
            held = fleet.arena_bytes() / model, fleet.mapped_bytes() / model
            self.verified(fleet, version, "a")
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"]["to"], before)
            self.verified(fleet, before, "a")
            held = *held, fleet.arena_bytes() / model
            self.ends(fleet)
            return held

    def test_ten_updates_and_a_rollback_need_little_more_than_a_model(self):
        for share in self.grown():
            self.assertLess(share, 1.15)
            self.assertGreaterEqual(share, 1)

    def test_it_is_several_models_if_that_is_switched_off(self):
        # The one that is served, the one before it, and the memory of the next one.
        for share in self.grown("--set", "patch.in_place=off"):
            self.assertGreaterEqual(share, 2)
            self.assertLess(share, 3.15)

    def test_a_version_in_full_needs_another_arena_for_some_time(self):
        with self.fleet() as fleet:
            fleet.begin(sidecar=("--set", "idle_release=1s"))
            model = fleet.model_bytes()
            full = fleet.pushed(fleet.full(2))["version"]
            self.assertGreaterEqual(fleet.arena_bytes(), 2 * model)
            version = fleet.updated()
            self.came_as_changes(fleet, "s0", version, full)
            fleet.until(lambda: fleet.arena_bytes() < 1.15 * model, "the return of the free arena")
            self.assertTrue(fleet.said_by("s0")["can_roll_back"])
            newest = fleet.updated()
            self.came_as_changes(fleet, "s0", newest, version)
            self.verified(fleet, newest, "a")


class ThereAndBack(InPlaceCase):
    def test_a_rollback_and_the_next_version(self):
        for settings in (), ("--set", "patch.mode=off"):
            with self.subTest(settings), self.fleet() as fleet:
                first = fleet.begin(replicas=("a", "b"), sidecar=settings)
                second = fleet.updated()
                self.came_as_changes(fleet, "s0", second, first)
                code, answer = fleet.ask("rollback")
                self.assertEqual(code, 0, answer)
                fleet.is_told("s0", f"{first} is complete: " + IN_PLACE.format(second))
                for replica in ("a", "b"):
                    self.assertEqual(fleet.load_of(replica)["kind"], "full" if settings else "patch")
                self.verified(fleet, first, "a", "b")
                third = fleet.updated()
                self.came_as_changes(fleet, "s0", third, first)
                self.verified(fleet, third, "a", "b")
                # What was taken back is not kept in its place.
                code, answer = fleet.ask("rollback")
                self.assertEqual(code, 0, answer)
                self.verified(fleet, first, "a", "b")
                self.ends(fleet)

    def test_a_chain_and_one_that_comes_late(self):
        with self.fleet() as fleet:
            version = fleet.begin(sidecars=2, replicas=("a", "a1"))
            for _ in range(10):
                base, version = version, fleet.updated()
                for name in fleet.sidecars:
                    self.came_as_changes(fleet, name, version, base)
                self.verified(fleet, version, "a", "a1")
            fleet.begin_sidecar("s2")
            fleet.begin_engine("a2")
            self.verified(fleet, version, "a", "a1", "a2")
            base, version = version, fleet.updated()
            for name in fleet.sidecars:
                self.came_as_changes(fleet, name, version, base)
            self.verified(fleet, version, "a", "a1", "a2")
            self.ends(fleet)

    def test_a_canary_then_everybody_then_back(self):
        with self.fleet() as fleet:
            fleet.begin(replicas=("a", "b"), trainer=("--set", "canary=a"))
            code, answer = fleet.ask("promote")
            self.assertEqual(code, 0, answer)
            first = fleet.replicas()["a"]["version"]
            fleet.until_ready(first, "a", "b")
            second = fleet.updated()
            self.came_as_changes(fleet, "s0", second, first, BESIDE)
            self.verify_each(fleet, {"a": second, "b": first})
            code, answer = fleet.ask("promote")
            self.assertEqual(code, 0, answer)
            self.verified(fleet, second, "a", "b")
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.verified(fleet, first, "a", "b")
            # A canary that is taken back.
            third = fleet.updated()
            self.came_as_changes(fleet, "s0", third, first, BESIDE)
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.verified(fleet, first, "a", "b")
            self.ends(fleet)

    def test_everything_changes_and_one_tensor_does(self):
        with self.fleet() as fleet:
            fleet.begin()
            full = fleet.pushed(fleet.full(2))["version"]
            fleet.is_told("s0", f"version {full} needs memory beside that of 1.1: ")
            self.verified(fleet, full, "a")
            base = full
            tensors = sorted(tensors_of(fleet.path("v2")), key=lambda each: each[1])
            for tensor in tensors[len(tensors) // 2:][:2]:
                version = fleet.pushed(fleet.with_other_tensor(tensor[0]))["version"]
                self.came_as_changes(fleet, "s0", version, base)
                self.verified(fleet, version, "a")
                base = version
            # A whole bucket, which may be among the first that are asked for: it comes in one of both ways.
            version = fleet.pushed(fleet.with_other_tensor(tensors[-1][0]))["version"]
            self.verified(fleet, version, "a")
            self.ends(fleet)

    def test_engines_that_adopt_get_memory_of_its_own(self):
        with self.fleet() as fleet:
            version = fleet.begin(engine=("--adopt",))
            for _ in range(3):
                version = fleet.updated()
                self.verified(fleet, version, "a")
            self.assertNotIn("was changed in place", fleet.log_of("s0"))
            # One that copies takes its place.
            fleet.engines.pop("a").end()
            fleet.begin_engine("b")
            fleet.until_ready(version, "b")
            base, version = version, fleet.updated()
            self.came_as_changes(fleet, "s0", version, base)
            self.verified(fleet, version, "b")
            # One that adopts comes to it, and serves the memory that is not to be changed from then on.
            fleet.begin_engine("c", "--adopt")
            fleet.until_ready(version, "b", "c")
            version = fleet.updated()
            self.verified(fleet, version, "b", "c")
            self.ends(fleet)


class TensorInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("shape_count", ctypes.c_size_t), ("bytes", ctypes.c_uint64)]


class Version(ctypes.Structure):
    _fields_ = [("epoch", ctypes.c_uint32), ("step", ctypes.c_uint64)]


class Want(ctypes.Structure):
    _fields_ = [("has_step", ctypes.c_int), ("step", ctypes.c_uint64), ("after", Version)]


class Reader:
    """A process that is no engine, as wsync/reader.h has it: this one."""
    library = ctypes.CDLL(READER_LIBRARY)
    for name, result in (("create", ctypes.c_void_p), ("error", ctypes.c_char_p)):
        getattr(library, f"wsync_reader_{name}").restype = result

    def __init__(self, fleet, sidecar):
        path = os.path.join(fleet.run_dir, f"{sidecar}.engines")
        self.reader = ctypes.c_void_p(self.library.wsync_reader_create(path.encode(), b"test"))

    def __enter__(self):
        """Opens the version that is served now."""
        version = Version()
        timeout = ctypes.c_int(int(DEADLINE_S * 1000))
        if self.library.wsync_reader_open(self.reader, ctypes.byref(Want()), timeout, ctypes.byref(version)) != 0:
            raise AssertionError(self.library.wsync_reader_error(self.reader).decode())
        self.version = f"{version.epoch}.{version.step}"
        return self

    def __exit__(self, *failure):
        self.library.wsync_reader_destroy(self.reader)

    def digest(self):
        """Of all bytes of the version that it has open."""
        count = ctypes.c_uint32()
        assert self.library.wsync_reader_count(self.reader, ctypes.byref(count)) == 0
        digest = hashlib.blake2b()
        for tensor in range(count.value):
            info, data = TensorInfo(), ctypes.c_void_p()
            assert self.library.wsync_reader_tensor(self.reader, tensor, ctypes.byref(info), ctypes.byref(data)) == 0
            digest.update(ctypes.string_at(data, info.bytes))
        return digest.hexdigest()


class Readers(InPlaceCase):
    def test_what_a_reader_has_open_never_changes(self):
        with self.fleet() as fleet:
            first = fleet.begin(sidecar=("--set", "idle_release=1s"))
            model = fleet.model_bytes()
            with Reader(fleet, "s0") as reader:
                self.assertEqual(reader.version, first)
                before = reader.digest()
                push = fleet.push(fleet.next(1000))
                fleet.until(lambda: "changing the copy of 1.1 to 1.2" in fleet.said_by("s0")["activity"], "that it waits for the reader")
                code, answer = push.result()
                self.assertEqual(code, 0, answer)
                second = answer["result"]["version"]
                self.came_as_changes(fleet, "s0", second, first, BESIDE)
                self.verified(fleet, second, "a")
                self.assertGreaterEqual(fleet.arena_bytes(), 2 * model)
                third = fleet.updated(700)
                # Nobody reads that one.
                self.came_as_changes(fleet, "s0", third, second)
                self.assertEqual(reader.digest(), before)
            fleet.until(lambda: fleet.arena_bytes() < 1.15 * model, "the return of what was read")
            with Reader(fleet, "s0") as reader:
                self.assertEqual(reader.version, third)
                self.assertNotEqual(reader.digest(), before)
            self.verified(fleet, third, "a")
            fourth = fleet.updated()
            self.came_as_changes(fleet, "s0", fourth, third)
            trace = fleet.path("trace")
            code, answer = fleet.ask("trace", "get", "--output", trace, "--updates", "0")
            self.assertEqual(code, 0, answer)
            with open(trace, encoding="utf-8") as file:
                names = {event["name"] for event in json.load(file)["traceEvents"]}
            self.assertLessEqual({f"copying {first} to {second}", f"changing {second} to {third}", f"changing {third} to {fourth}"}, names)
            self.ends(fleet)

    def test_without_memory_the_end_of_a_reader_is_awaited(self):
        with self.fleet() as fleet:
            model = 16 << 20
            first = fleet.begin(sidecar=("--set", f"host_memory={int(2.2 * model)}B"))
            with Reader(fleet, "s0") as reader:
                before = reader.digest()
                second = fleet.updated()
                self.came_as_changes(fleet, "s0", second, first, BESIDE)
                with Reader(fleet, "s0") as another:
                    self.assertEqual(another.version, second)
                    push = fleet.push(fleet.next(1000))
                    fleet.is_told("s0", "the end of its readers is awaited")
                    self.serves(fleet.engines["a"], second)
                self.assertEqual(reader.digest(), before)
                code, answer = push.result()
                self.assertEqual(code, 0, answer)
                third = answer["result"]["version"]
                self.came_as_changes(fleet, "s0", third, second)
            self.verified(fleet, third, "a")
            self.ends(fleet)


class Hangs(InPlaceCase):
    def test_an_engine_that_stands_still_keeps_nobody(self):
        for engine, settings in (((), ()), ((), ("patch.mode=off",)), (("--whole",), ())):
            with self.subTest(engine=engine, settings=settings), self.fleet() as fleet:
                more = [word for setting in (*settings, f"engine_deadline={short(500)}") for word in ("--set", setting)]
                version = fleet.begin(replicas=("a", "b"), sidecar=more, engine=engine, trainer=("--set", "min_replicas=1"))
                fleet.engines["a"].freeze()
                for _ in range(3):
                    base, version = version, self.pushed_to_b(fleet)
                    self.came_as_changes(fleet, "s0", version, base)
                fleet.engines["a"].thaw()
                self.verified(fleet, version, "a", "b")
                base, version = version, fleet.updated()
                self.came_as_changes(fleet, "s0", version, base)
                self.verified(fleet, version, "a", "b")
                self.ends(fleet)

    def pushed_to_b(self, fleet):
        code, answer = fleet.ask("push", fleet.next(1000))
        version = fleet.replicas()["b"]["version"]
        self.assertEqual(answer["result"]["version"], version, answer)
        return version

    def test_one_that_hangs_in_a_load_keeps_what_it_reads(self):
        with self.fleet() as fleet:
            # Of so many tensors that an engine, which tells of each, comes to a halt in the middle when nobody reads on.
            fleet.one = fleet.path("many")
            many(fleet.one, 1)
            fleet.begin(replicas=("a", "b"), sidecar=("--set", "patch.mode=off", "--set", "idle_release=1s"),
                        trainer=("--set", f"deadlines.load={short(1000)}"))
            model = fleet.model_bytes()
            a, b = fleet.engines["a"], fleet.engines["b"]
            a.hold_at("layer", layer=0)
            two = fleet.path("v2")
            many(two, 2)
            fleet.versions = 2
            push = fleet.push(two)
            a.until_held()
            second = b.expect("committed")["version"]
            push.result()
            third = self.pushed_to_b(fleet)
            self.came_as_changes(fleet, "s0", third, second, BESIDE)
            self.serves(b, third)
            a.go_on()
            self.verified(fleet, third, "a", "b")
            fourth = fleet.updated()
            self.came_as_changes(fleet, "s0", fourth, third)
            fleet.until(lambda: fleet.arena_bytes() < 1.15 * model, "the return of what was read")
            self.verified(fleet, fourth, "a", "b")
            self.ends(fleet)


class Kills(InPlaceCase):
    def test_a_sidecar_that_is_killed_in_the_middle_of_the_change(self):
        for point in ("copy_changed:1", "copy_changed:5", "copy_changed:16"):
            with self.subTest(point), self.fleet() as fleet:
                with fleet.armed(point):
                    fleet.begin_sidecar("s0")
                fleet.begin_engine("a")
                fleet.begin_trainer()
                fleet.pushed(fleet.one)
                killed = fleet.sidecars["s0"]
                push = fleet.push(fleet.next(1000))
                self.assertEqual(killed.popen.wait(DEADLINE_S), -signal.SIGKILL)
                killed.kill()
                fleet.begin_sidecar("s0")
                push.result()
                # It was decided: the target is fetched, in full.
                self.verified(fleet, fleet.until_at_target("a"), "a")
                base = fleet.replicas()["a"]["version"]
                self.assertEqual(base, "1.2")
                self.assertEqual(fleet.said_by("s0")["sidecars"][0]["last_copy"]["base"], "0.0")
                version = fleet.updated()
                self.came_as_changes(fleet, "s0", version, base)
                self.verified(fleet, version, "a")
                self.ends(fleet)

    def test_a_trainer_that_is_killed_before_it_decides(self):
        with self.fleet() as fleet:
            first = self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            fleet.coordinator.kill()
            push.result()
            fleet.engines["a1"].thaw()
            fleet.begin_trainer("--set", "min_sidecars=2", "--set", "min_replicas=2")
            fleet.until_ready(first, "a", "a1")
            self.verified(fleet, first, "a", "a1")
            # This trainer does not hold what they serve.
            version = fleet.updated()
            fleet.is_told("s0", f"version {version} needs memory beside that of {first}: ")
            base, version = version, fleet.updated()
            self.came_as_changes(fleet, "s0", version, base)
            self.verified(fleet, version, "a", "a1")
            self.ends(fleet)

    def test_an_engine_that_is_killed_in_the_load_after_it(self):
        with self.fleet() as fleet:
            first = fleet.begin(replicas=("a",), trainer=("--set", "min_replicas=1"))
            with fleet.armed("patch_run:1"):
                fleet.begin_engine("b")
            fleet.until_ready(first, "a", "b")
            killed = fleet.engines["b"]
            fleet.ask("push", fleet.next(300))
            fleet.ask("push", fleet.next(300))
            self.assertEqual(killed.popen.wait(DEADLINE_S), -signal.SIGKILL)
            killed.kill()
            fleet.begin_engine("b")
            version = fleet.until_at_target("a", "b")
            self.verified(fleet, version, "a", "b")
            newest = fleet.updated()
            self.came_as_changes(fleet, "s0", newest, version)
            self.verified(fleet, newest, "a", "b")
            self.ends(fleet)

    def test_one_that_is_cancelled_when_it_has_come(self):
        with self.fleet() as fleet:
            first = self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            code, answer = fleet.ask("cancel")
            self.assertEqual(code, 0, answer)
            self.assertEqual(push.result()[0], 130)
            fleet.until(lambda: fleet.said_by("s0")["sidecars"][0]["staged"] == [first], "a sidecar that has forgotten it")
            fleet.engines["a1"].thaw()
            self.verified(fleet, first, "a", "a1")
            version = fleet.updated()
            self.came_as_changes(fleet, "s0", version, first)
            self.verified(fleet, version, "a", "a1")
            self.ends(fleet)

    def test_each_switches_as_soon_as_it_can(self):
        with self.fleet() as fleet:
            first = fleet.begin(sidecars=2, replicas=("a", "a1"),
                                trainer=("--set", "commit=each", "--set", "min_replicas=1", "--set", "min_sidecars=1"))
            fleet.until_ready(first, "a", "a1")
            fleet.sidecars["s1"].freeze()
            version = first
            for _ in range(3):
                push = fleet.push(fleet.next(1000))
                base, version = version, fleet.engines["a"].expect("committed")["version"]
                fleet.is_told("s0", f"{version} is complete: " + IN_PLACE.format(base))
                push.result()
            fleet.sidecars["s1"].thaw()
            self.verified(fleet, version, "a", "a1")
            base, version = version, fleet.updated()
            for name in fleet.sidecars:
                fleet.is_told(name, f"{version} is complete: " + IN_PLACE.format(base))
            self.verified(fleet, version, "a", "a1")
            self.ends(fleet)


class Damage(InPlaceCase):
    def flip(self, fleet, name, offset):
        """Flips a bit in the arena of a sidecar: of this byte of the first file of the first checkpoint. Others were changed in each
        element whose number a thousand divides."""
        path = sorted(glob.glob(os.path.join(fleet.one, "*.safetensors")))[0]
        wanted = tensors.read_file(path)[1][:1000]
        pid, places = fleet.sidecars[name].pid, 0
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for line in maps:
                if "/memfd:wsync-s" not in line:
                    continue
                begin, end = (int(address, 16) for address in line.split()[0].split("-"))
                memory.seek(begin)
                at = memory.read(end - begin).find(wanted)
                if at < 0:
                    continue
                memory.seek(begin + at + offset)
                byte, = memory.read(1)
                memory.seek(begin + at + offset)
                memory.write(bytes([byte ^ 1]))
                places += 1
        self.assertEqual(places, 1)

    def test_a_word_that_changes_before_it_arrives(self):
        with self.fleet() as fleet:
            first = fleet.begin(replicas=("a", "b"))
            self.flip(fleet, "s0", 1)
            version = fleet.updated()
            fleet.is_told("s0", f"version {version} needs memory beside that of {first}: ")
            self.verified(fleet, version, "a", "b")
            base, version = version, fleet.updated()
            self.came_as_changes(fleet, "s0", version, base)
            self.verified(fleet, version, "a", "b")
            self.ends(fleet)

    def test_a_word_that_changes_after_it_has_arrived(self):
        with self.fleet() as fleet:
            self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            self.flip(fleet, "s0", 1)
            fleet.engines["a1"].thaw()
            push.result()
            fleet.is_told("s0", "it is fetched again")
            version = fleet.until_at_target("a", "a1")
            self.assertEqual(version, "1.2")
            self.verified(fleet, version, "a", "a1")
            newest = fleet.updated()
            self.came_as_changes(fleet, "s0", newest, version)
            self.verified(fleet, newest, "a", "a1")
            self.ends(fleet)

    def test_a_word_that_changes_while_a_reader_has_the_copy(self):
        with self.fleet() as fleet:
            first = self.begin_two(fleet)
            push = self.held_before_the_decision(fleet)
            self.flip(fleet, "s0", 1)
            with Reader(fleet, "s0") as reader:
                self.assertEqual(reader.version, first)
                fleet.engines["a1"].thaw()
                push.result()
                # It does not wait for the reader, which cannot mend it.
                version = fleet.until_at_target("a", "a1")
                self.verified(fleet, version, "a", "a1")
            self.assertNotIn("is awaited", fleet.log_of("s0"))
            self.ends(fleet)

    def test_a_word_that_does_not_change_while_a_reader_has_the_copy(self):
        with self.fleet() as fleet:
            first = fleet.begin()
            self.flip(fleet, "s0", 632)
            with Reader(fleet, "s0") as reader:
                self.assertEqual(reader.version, first)
                fleet.ask("push", fleet.next(1000))
                # All of a copy that is made elsewhere is compared.
                fleet.is_told("s0", "its copy is damaged; it is fetched again")
                self.verified(fleet, fleet.until_at_target("a"), "a")
            self.assertNotIn("is complete: the copy", fleet.log_of("s0"))
            self.ends(fleet)

    def test_a_word_that_does_not_change(self):
        with self.fleet() as fleet:
            first = fleet.begin()
            self.flip(fleet, "s0", 632)
            second = fleet.updated()
            self.came_as_changes(fleet, "s0", second, first)
            fleet.until_ready(second, "a")
            # An engine that needs all of it finds the bit, and gets another copy.
            fleet.begin_engine("b")
            fleet.is_told("s0", f"the copy of {second} has changed since it was staged and is released")
            self.verified(fleet, second, "a", "b")
            third = fleet.updated()
            self.came_as_changes(fleet, "s0", third, second)
            self.verified(fleet, third, "a", "b")
            self.ends(fleet)


def many(directory, seed):
    """A checkpoint of many layers."""
    os.makedirs(directory)
    header, size = tensors.layout({f"model.layers.{layer}.mlp.up_proj.weight": [64, 256] for layer in range(500)})
    tensors.write_file(os.path.join(directory, "model.safetensors"), header, tensors.data_of(size, seed))


def tensors_of(directory):
    """(name, bytes) of each tensor."""
    found = []
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        header, _ = tensors.read_file(path)
        found += [(name, each["data_offsets"][1] - each["data_offsets"][0]) for name, each in header.items() if name != "__metadata__"]
    return found


if __name__ == "__main__":
    unittest.main()
