"""Engines in Python: how weights arrive, what callbacks may do, and what the fleet is told."""
import gc
import os
import queue
import select
import signal
import threading
import unittest
import weakref

import numpy as np
import wsync
from package_fleet import DEADLINE_S, NAMES, PackageFleet, Served, bf16, empty_like, equal, float_of, until, weights_of

SPECS = {name: wsync.Spec("BF16", (64, 32)) for name in NAMES}


class Copying:
    """Gives its values, but not its memory."""

    @property
    def __array_interface__(self):
        return {"version": 3, "shape": (1024,), "typestr": "<f4", "data": bytearray(4096)}


class Exporting:
    """Gives its memory."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


class Engines(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.sidecar, self.socket = self.fleet.sidecar()
        self.publisher = self.enterContext(self.fleet.publisher(**{"deadlines.load": "10s"}))

    def committed(self, seed, step=None):
        return self.publisher.publish(weights_of(seed), step=step).wait(timeout=DEADLINE_S)

    def failed(self, seed):
        with self.assertRaises(wsync.Error) as caught:
            self.committed(seed)
        return caught.exception


class Taking(Engines):
    def test_whole_tensors_belong_to_the_engine(self):
        kept = {}

        def load_layer(version, layer, tensors):
            self.assertEqual(list(tensors), [NAMES[layer]])
            for name, array in tensors.items():
                self.assertEqual((array.dtype_name, array.shape, array.dtype), ("BF16", (64, 32), np.uint16))
                kept[str(version), name] = array

        def read_tensor(name, offset, out):
            active = str(replica.status().active)
            out[:] = kept[active, name].view(np.uint8).reshape(-1)[offset:offset + out.size]

        replica = wsync.Replica(self.socket, "r0", SPECS, take="whole", load_layer=load_layer, read_tensor=read_tensor)
        self.fleet.serve(replica)
        for step in (1, 2, 3):
            self.committed(step, step)
        for step in (1, 2, 3):
            equal(self, {name: kept[f"1.{step}", name] for name in NAMES}, weights_of(step))
            kept[f"1.{step}", NAMES[0]][:] = 1  # they are writable
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 1, answer)
        self.assertEqual([found["tensor"] for found in answer["result"]["ranks"][0]["mismatches"]], [NAMES[0]])  # just overwritten
        until(lambda: self.fleet.ask("verify")[0] == 0, "that all bytes were loaded again")
        equal(self, {name: kept["1.3", name] for name in NAMES}, weights_of(3))

    def test_an_engine_that_cannot_read_back_says_so(self):
        self.fleet.serve(wsync.Replica(self.socket, "r0", SPECS, take="whole", load_layer=lambda *_: None))
        self.committed(1)
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 4)
        self.assertEqual((answer["result"]["match"], answer["result"]["only_unreadable"]), (False, True))
        self.assertIn("this engine gives no read_tensor, so its tensors cannot be read back", str(answer))

    def test_adopted_arrays_are_the_version_until_the_next_commit(self):
        held = {}
        replica = wsync.Replica(self.socket, "r0", SPECS, take="adopt",
                                load_layer=lambda version, layer, tensors: held.update(tensors))
        self.fleet.serve(replica)
        self.committed(1)
        equal(self, held, weights_of(1))
        old = dict(held)
        self.assertFalse(old[NAMES[0]].flags.writeable)
        with self.assertRaises(ValueError):
            old[NAMES[0]][:] = 1
        self.committed(2)
        equal(self, held, weights_of(2))
        for array in old.values():
            self.assertEqual(np.asarray(array).max(), 0)  # no crash, and no other version's bytes
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        replica.close()
        for array in held.values():
            self.assertEqual(np.asarray(array).max(), 0)

    def test_a_layer_that_was_adopted_and_never_committed(self):
        held, refuse = [], []

        def commit(version):
            if refuse:
                raise RuntimeError("not this one")

        self.enterContext(self.assertLogs("wsync", "ERROR"))
        self.fleet.serve(wsync.Replica(self.socket, "r0", SPECS, take="adopt", commit=commit,
                                       load_layer=lambda version, layer, tensors: held.append((str(version), dict(tensors)))))
        self.committed(1)
        refuse.append(True)
        self.failed(2)
        refuse.clear()
        status = self.committed(3)
        for version, tensors in held:
            for name, array in tensors.items():
                if version == str(status.version):
                    equal(self, {name: array}, {name: weights_of(3)[name]})
                else:
                    self.assertEqual(np.asarray(array).max(), 0, version)

    def test_pieces_of_a_part(self):
        whole = weights_of(4)
        held = [{name: wsync.as_dtype(np.zeros((32, 32), np.uint16), "BF16") for name in NAMES} for _ in range(2)]
        paused = []
        parts = [{name: wsync.Shard(array, (64, 32), [(0, 32 * rank, 32)]) for name, array in held[rank].items()}
                 for rank in range(2)]
        leader = wsync.Replica(self.socket, "r0", parts[0],
                               rank=0, world_size=2, serving=True, pause=paused.append)
        follower = wsync.Replica(self.socket, "r0", parts[1],
                                 rank=1, world_size=2, leader=False, serving=True)
        for replica in (leader, follower):
            self.fleet.serve(replica)
        publish = self.publisher.publish(whole)

        def ranks_stop():
            if paused and not stopped:
                stopped.append(True)
                leader.paused(5)
                follower.paused(5)
            return publish.status().state >= wsync.PublishState.COMMITTED
        stopped = []
        until(ranks_stop, "the switch of two ranks")
        publish.wait("committed", DEADLINE_S)
        follower.running(6)
        self.assertEqual((paused[0].mode, str(paused[0].version)), (wsync.PauseMode.ABORT, "1.1"))
        self.assertEqual(paused[0].bytes, sum(array.nbytes for array in whole.values()))
        self.assertGreater(paused[0].deadline_s, 0)
        for name in NAMES:
            equal(self, {"x": np.concatenate([held[0][name], held[1][name]])}, {"x": whole[name]})

    def test_a_controller_without_weights(self):
        held = empty_like(weights_of(0))
        controller = wsync.Replica(self.socket, "r0", has_controller=True, serving=True)
        worker = wsync.Replica(self.socket, "r0", held, leader=False, has_controller=True, serving=True)
        self.fleet.serve(controller)
        self.fleet.serve(worker)
        publish = self.publisher.publish(weights_of(1))
        until(lambda: worker.paused(1) or publish.status().state >= wsync.PublishState.COMMITTED, "the switch")
        publish.wait("committed", DEADLINE_S)
        equal(self, held, weights_of(1))
        until(lambda: controller.serving, "the resume of the controller")


class Casting(Engines):
    """Tensors that the engine holds in another dtype than the versions have."""

    def test_every_half_in_float32(self):
        every = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
        published = {"bf16": wsync.as_dtype(every.copy(), "BF16"), "f16": every.view(np.float16)}
        held = {name: np.full((256, 256), 7, np.float32) for name in published}
        self.fleet.serve(wsync.Replica(self.socket, "r0", held, casts={"bf16": "BF16", "f16": "F16"}))
        self.publisher.publish(published).wait(timeout=DEADLINE_S)
        for name, expected in (("bf16", float_of(every)), ("f16", every.view(np.float16).astype(np.float32))):
            number = ~np.isnan(expected)
            self.assertTrue(np.array_equal(held[name].view(np.uint32)[number], expected.view(np.uint32)[number]), name)
            self.assertTrue(np.isnan(held[name][~number]).all(), name)
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)  # NaNs are compared too
        held["bf16"].view(np.uint32)[3, 3] ^= 1
        code, answer = self.fleet.ask("verify")
        self.assertEqual([found["tensor"] for found in answer["result"]["ranks"][0]["mismatches"]], ["bf16"], answer)

    def test_narrowed_values_are_rounded_to_the_nearest_and_cannot_be_read_back(self):
        random = np.random.default_rng(3)
        values = random.standard_normal((64, 33)).astype(np.float32) * np.float32(10.0) ** random.integers(-9, 6, (64, 33))
        values = values.astype(np.float32)
        values.view(np.uint32)[::2] &= 0xFFFF8000  # ties
        held = {"bf16": wsync.as_dtype(np.zeros((64, 33), np.uint16), "BF16"), "f16": np.zeros((64, 33), np.float16)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", held, casts={name: "F32" for name in held}))
        self.publisher.publish({name: values.copy() for name in held}).wait(timeout=DEADLINE_S)
        equal(self, held, {"bf16": bf16(values)})
        with np.errstate(over="ignore"):
            equal(self, held, {"f16": values.astype(np.float16)})
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 4)
        self.assertIn("tensor bf16 cannot be read back: it is F32 in the version and BF16 in this engine's memory", str(answer))

    def test_columns_of_two_ranks_in_another_dtype(self):
        whole, parts = weights_of(4), [(0, 11), (11, 21)]
        held = [{name: np.zeros((64, count), np.float32) for name in NAMES} for _, count in parts]
        for rank, (begin, count) in enumerate(parts):
            self.fleet.serve(wsync.Replica(self.socket, "r0", {name: wsync.Shard(array, (64, 32), [(1, begin, count)])
                                                              for name, array in held[rank].items()},
                                           rank=rank, world_size=2, leader=rank == 0, casts=dict.fromkeys(NAMES, "BF16")))
        self.publisher.publish(whole).wait(timeout=DEADLINE_S)
        for name in NAMES:
            equal(self, {"x": np.concatenate([held[0][name], held[1][name]], 1)}, {"x": float_of(whole[name])})

    def test_what_cannot_be_cast(self):
        array = np.zeros((4, 4), np.float32)
        for options, sentence in (({"tensors": {"x": array}, "casts": {"x": "F8_E4M3"}}, "only F32, F16 and BF16 can be converted"),
                                  ({"tensors": {"x": array}, "casts": {"x": "bf61"}}, "casts: dtype of x 'bf61' is unknown; did you mean 'BF16'?"),
                                  ({"tensors": {"x": array}, "casts": {"y": "BF16"}}, "casts name tensor y"),
                                  ({"tensors": SPECS, "casts": {NAMES[0]: "F32"}, "take": "adopt", "load_layer": print},
                                   "'pieces'")):
            with self.assertRaises(wsync.Error) as caught:
                wsync.Replica(self.socket, "r0", **options)
            self.assertIn(sentence, caught.exception.sentence)


class Leading(Engines):
    """Steps that the leader leads: each rank is a thread here, and a queue carries the headers."""

    def test_no_step_mixes_two_versions(self):
        held = [{NAMES[0]: wsync.as_dtype(np.zeros((32, 32), np.uint16), "BF16")} for _ in range(2)]
        ranks = [wsync.Replica(self.socket, "r0", {NAMES[0]: wsync.Shard(held[rank][NAMES[0]], (64, 32), [(0, 32 * rank, 32)])},
                               rank=rank, world_size=2, leader=rank == 0, led_steps=True) for rank in range(2)]
        for replica in ranks:
            self.enterContext(replica)
            replica.start()  # no callback: the library pauses and resumes by the headers
        headers, values, over, failures = queue.Queue(), queue.Queue(), threading.Event(), []

        def value_of(rank):
            found = np.unique(np.asarray(held[rank][NAMES[0]]))
            assert found.size == 1, f"rank {rank} reads {found}"
            return found[0]

        def lead():
            while not over.is_set():
                go, header = ranks[0].lead_step()
                headers.put(header)
                if not go:
                    over.wait(0.001)
                elif value_of(0) != values.get(timeout=DEADLINE_S):
                    raise AssertionError(f"two versions in step {ranks[0].step}")
            headers.put(None)

        def follow():
            while (header := headers.get(timeout=DEADLINE_S)) is not None:
                if ranks[1].follow_step(header):
                    values.put(value_of(1))

        def run(loop):
            try:
                loop()
            except BaseException as failure:
                failures.append(failure)
                over.set()
        threads = [threading.Thread(target=run, args=(loop,)) for loop in (lead, follow)]
        for thread in threads:
            thread.start()
        try:
            for step in range(1, 13):
                weights = {NAMES[0]: wsync.as_dtype(np.full((64, 32), 0x3F00 + step, np.uint16), "BF16")}
                self.assertEqual(self.publisher.publish(weights).wait(timeout=DEADLINE_S).replicas, 1, failures)
            begun = ranks[1].step
            until(lambda: ranks[1].step > begun or failures, "steps under the last version")
        finally:
            over.set()
            for thread in threads:
                thread.join(DEADLINE_S)
        self.assertEqual(failures, [])
        self.assertEqual({str(replica.status().active) for replica in ranks}, {"1.12"})

    def test_a_rank_that_would_step_under_another_version(self):
        held = [empty_like({NAMES[0]: weights_of(0)[NAMES[0]]}) for _ in range(2)]
        leader = wsync.Replica(self.socket, "r0", held[0], led_steps=True)
        leader.start()
        self.enterContext(leader)
        self.publisher.publish({NAMES[0]: weights_of(1)[NAMES[0]]}).wait(timeout=DEADLINE_S)
        go, header = until(lambda: (led := leader.lead_step())[0] and led, "the resume")
        self.assertEqual((go, len(header), leader.step), (True, 40, 1))
        # Of another replica, so that no sidecar brings it to the version of this one.
        follower = self.enterContext(wsync.Replica("/nowhere/host.engines", "r1", held[1], rank=1, world_size=2, leader=False,
                                                   led_steps=True))
        for wrong, sentence in ((header, "replica r1 rank 1 holds no whole version: it is loading, and held no version before, "
                                         "but its leader begins step 1 under version 1.1"),
                                (header[:-1], "no header of a step"), (b"", "no header of a step")):
            with self.assertRaises(wsync.EngineRefused) as caught:
                follower.follow_step(wrong)
            self.assertIn(sentence, caught.exception.sentence)
            self.assertFalse(follower.serving)
        with self.assertRaises(wsync.EngineRefused):
            follower.lead_step()
        with self.assertRaises(wsync.EngineRefused):
            leader.follow_step(header)
        leader.close()
        with self.assertRaises(wsync.Closed):
            leader.lead_step()


class Borrowing(Engines):
    """Engines that take whatever a version has, and pack it into memory of their own."""

    def packing(self, **callbacks):
        packed, borrowed = {}, []

        def load_layer(version, layer, tensors):
            borrowed.append(tensors)
            for name, array in tensors.items():
                self.assertFalse(array.flags.writeable)
                packed[name] = np.array(array, copy=True)
        replica = wsync.Replica(self.socket, "r0", take="borrow", **{"load_layer": load_layer} | callbacks)
        self.fleet.serve(replica)
        return replica, packed, borrowed

    def test_any_layout_is_packed(self):
        _, packed, borrowed = self.packing()
        other = {"fused.qkv": np.arange(96, dtype=np.float32).reshape(12, 8), "norm": np.ones(8, np.float16)}
        for weights in (weights_of(1), other, weights_of(2)):
            packed.clear()
            self.publisher.publish(weights).wait(timeout=DEADLINE_S)
            self.assertEqual(set(packed), set(weights))
            equal(self, packed, weights)
        for tensors in borrowed:
            for array in tensors.values():
                self.assertFalse(np.asarray(array).any())  # after the commit they are nobody's

    def test_a_version_that_does_not_fit_is_refused_before_anybody_pauses(self):
        pauses = []

        def check_version(version, tensors):
            if list(tensors) != NAMES:
                raise ValueError(f"{sorted(set(tensors) - set(NAMES))[0]} is not known to this model")
            self.assertEqual(tensors, SPECS)

        def pause(found):
            pauses.append(found)
            replica.paused(0)
        replica, packed, _ = self.packing(check_version=check_version, pause=pause)
        self.committed(1)
        switches = len(pauses)
        with self.assertLogs("wsync", "ERROR"), self.assertRaises(wsync.Error) as caught:
            self.publisher.publish(weights_of(2) | {"extra.weight": np.ones(3, np.float32)}).wait(timeout=DEADLINE_S)
        self.assertIn("extra.weight is not known to this model", caught.exception.sentence)
        self.assertEqual((len(pauses), str(replica.status().active)), (switches, "1.1"))
        equal(self, packed, weights_of(1))

    def test_layers_are_used_on_another_thread(self):
        work = queue.Queue()
        packed = {}

        def worker():
            while (task := work.get()) is not None:
                name, version, tensors = task
                if name == "load":
                    packed.update({key: np.array(array, copy=True) for key, array in tensors.items()})
                    if len(packed) == len(NAMES):
                        replica.loaded(version)
                else:
                    replica.committed(version)

        def later(*task):
            work.put(task)
            return wsync.LATER
        replica, _, _ = self.packing(load_layer=lambda version, layer, tensors: later("load", version, tensors),
                                     commit=lambda version: later("commit", version, None))
        thread = threading.Thread(target=worker)
        thread.start()
        try:
            for seed in (1, 2):
                packed.clear()
                self.committed(seed)
                equal(self, packed, weights_of(seed))
        finally:
            work.put(None)
            thread.join()
        self.assertIsNone(replica.error)

    def test_a_late_answer_may_be_a_failure(self):
        failing = [True]
        late = []

        def load_layer(version, layer, tensors):
            late.append((version, tensors))
            return wsync.LATER

        def serve_late():
            if len(late) >= len(NAMES):
                version = late[-1][0]
                used = [array.any() for _, tensors in late for array in tensors.values()]
                self.assertTrue(all(used))
                late.clear()
                replica.loaded(version, RuntimeError("out of memory while packing") if failing else None)
        replica, _, _ = self.packing(load_layer=load_layer)
        publish = self.publisher.publish(weights_of(1))
        until(lambda: serve_late() or publish.status().state >= wsync.PublishState.COMMITTED, "the failure")
        with self.assertRaises(wsync.Error) as caught:
            publish.wait("committed", DEADLINE_S)
        self.assertIn("RuntimeError: out of memory while packing", caught.exception.sentence)
        failing.clear()
        publish = self.publisher.publish(weights_of(2))
        until(lambda: serve_late() or publish.status().state >= wsync.PublishState.COMMITTED, "the commit")
        self.assertEqual(publish.wait(timeout=DEADLINE_S).replicas, 1)

    def test_verify_reads_back_what_was_packed_or_says_that_it_cannot(self):
        _, packed, _ = self.packing(read_tensor=lambda name, offset, out: np.copyto(
            out, packed[name].view(np.uint8).reshape(-1)[offset:offset + out.size]))
        self.committed(1)
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        packed[NAMES[1]][3, 3] ^= 1
        code, answer = self.fleet.ask("verify")
        self.assertEqual([found["tensor"] for found in answer["result"]["ranks"][0]["mismatches"]], [NAMES[1]], answer)


class Serving(Engines):
    def test_the_thread_of_start(self):
        held = empty_like(weights_of(0))

        class Engine(wsync.Replica):
            def on_pause(self, pause):
                threads.add(threading.current_thread().name)
                self.paused(1)

        threads = set()
        replica = self.enterContext(Engine(self.socket, "r0", held, serving=True))
        replica.start()
        with self.assertRaises(wsync.InvalidInput):
            replica.start()
        self.committed(1)
        equal(self, held, weights_of(1))
        self.assertEqual(threads, {"wsync r0"})
        plain = wsync.Replica(self.socket, "r1", held)
        with self.assertRaises(wsync.InvalidInput) as caught:
            plain.start()
        self.assertIn("pause callback", caught.exception.sentence)
        plain.close()

    def test_select_and_poll_without_waiting(self):
        held = empty_like(weights_of(0))
        replica = self.enterContext(wsync.Replica(self.socket, "r0", held))
        publish = self.publisher.publish(weights_of(1))

        def step():
            ready, _, _ = select.select([replica], [], [], 0.05)
            replica.poll(0)  # also without an event: it returns at once
            return publish.status().state == wsync.PublishState.COMMITTED
        until(step, "the switch")
        equal(self, held, weights_of(1))

    def test_only_one_thread_polls(self):
        replica = wsync.Replica(self.socket, "r0", empty_like(weights_of(0)))
        begun, refused = threading.Event(), []

        def commit(version):
            for call in (lambda: replica.poll(0.01), lambda: replica.poll(None)):
                try:
                    call()
                except wsync.Busy as failure:
                    refused.append(failure.sentence)
            begun.set()
        replica.on_commit = commit
        self.fleet.serve(replica)
        self.committed(1)
        self.assertTrue(begun.is_set())
        self.assertEqual(len(refused), 2)
        self.assertIn("another thread polls", refused[0])

    def test_the_sidecar_is_killed_and_comes_back(self):
        held = empty_like(weights_of(0))
        replica = wsync.Replica(self.socket, "r0", held)
        self.fleet.serve(replica)
        self.committed(1)
        self.sidecar.kill()
        self.sidecar.wait()
        until(lambda: not replica.status().attached, "the loss of the sidecar")
        equal(self, held, weights_of(1))  # it serves on
        self.fleet.sidecar()
        until(lambda: replica.status().attached, "the next sidecar")
        self.committed(2)
        equal(self, held, weights_of(2))
        self.assertIsNone(replica.error)

    def test_wrong_descriptions(self):
        array = np.zeros((4, 4), np.float32)
        read_only = array.copy()
        read_only.flags.writeable = False
        for tensors, word in (({"x": array.T[::2]}, "contiguous"), ({"x": read_only}, "writable"),
                              ({"x": wsync.Spec("F32", (4, 4))}, "memory"),
                              ({"x": wsync.Shard(array, (8, 4), [(0, 6, 4)])}, "x")):
            with self.assertRaises(wsync.Error) as caught:
                wsync.Replica(self.socket, "r0", tensors)
            self.assertEqual(caught.exception.tensor, "x", word)
            self.assertIn(word, caught.exception.sentence)
        for copied in np.float32(0), Copying():
            with self.assertRaisesRegex(wsync.InvalidInput, f"tensor x is a {type(copied).__name__}, of which NumPy gets a copy"):
                wsync.Replica(self.socket, "r0", {"x": copied})
        for arguments, word in ((("./relative", "r0"), "absolute"), (("", "r0"), "expected its name"), ((self.socket, ""), "1 to 128"),
                                ((self.socket, "x" * 200), "200")):
            with self.assertRaises(wsync.InvalidInput) as caught:
                wsync.Replica(*arguments, {"x": array})
            self.assertIn(word, caught.exception.sentence)
        with self.assertRaises(wsync.InvalidInput):
            wsync.Replica(self.socket, "r0", SPECS, take="whole")  # without load_layer
        for options in ({"take": "borrow-it"}, {"take": "pieces"}, {"take": "whole", "load_layer": print}):
            with self.assertRaises(wsync.InvalidInput):
                wsync.Replica(self.socket, "r0", None if options["take"] != "borrow-it" else SPECS, **options)


class Failing(Engines):
    def test_an_exception_is_the_sentence_that_the_fleet_reads(self):
        held = empty_like(weights_of(0))
        fail_in = []

        class Engine(wsync.Replica):
            def fail(self, here):
                if here in fail_in:
                    raise KeyError(f"the expert of\n{here}")

            def on_load_begin(self, version):
                self.fail("load_begin")

            def on_load_layer(self, version, layer, tensors):
                self.fail("load_layer")

            def on_commit(self, version):
                self.fail("commit")

        replica = Engine(self.socket, "r0", held)
        self.fleet.serve(replica)
        self.committed(1)
        for callback in ("load_begin", "load_layer", "commit"):
            fail_in[:] = [callback]
            with self.assertLogs("wsync", "ERROR") as logs:
                failure = self.failed(2)
            self.assertIn("KeyError", logs.output[0])
            self.assertIn(f"the expert of\\n{callback}", replica.error)
            self.assertIn(replica.error, failure.sentence)
            self.assertIn("r0", failure.sentence)
            fail_in.clear()
            self.committed(3)  # it is repaired
            equal(self, held, weights_of(3))

    def test_an_error_of_the_package_in_a_callback(self):
        def commit(version):
            wsync.as_dtype(np.zeros(2), "BF16")
        replica = wsync.Replica(self.socket, "r0", empty_like(weights_of(0)), commit=commit)
        self.fleet.serve(replica)
        with self.assertLogs("wsync", "ERROR"):
            failure = self.failed(1)
        self.assertEqual(replica.error, "elements of float64 have 8 bytes, those of BF16 2")
        self.assertIn(replica.error, failure.sentence)

    def test_a_callback_that_hangs_is_left_by_close(self):
        entered, leave = threading.Event(), threading.Event()
        self.addCleanup(leave.set)

        def commit(version):
            entered.set()
            leave.wait()
        replica = wsync.Replica(self.socket, "r0", empty_like(weights_of(0)), commit=commit)
        served = Served(replica)
        publish = self.publisher.publish(weights_of(1))
        self.assertTrue(entered.wait(DEADLINE_S))
        replica.close()  # returns although the callback does not
        self.assertTrue(replica.closed)
        with self.assertRaises(wsync.Error) as caught:
            publish.wait("committed", DEADLINE_S)
        self.assertIn("r0", caught.exception.sentence)
        leave.set()
        served.thread.join(DEADLINE_S)
        self.assertIsInstance(served.failure, wsync.Closed)

    def test_close_inside_of_a_callback(self):
        replica = wsync.Replica(self.socket, "r0", empty_like(weights_of(0)), load_layer=lambda *_: replica.close())
        served = Served(replica)
        failure = self.failed(1)
        self.assertIn("r0", failure.sentence)
        served.thread.join(DEADLINE_S)
        self.assertIsInstance(served.failure, wsync.Closed)

    def test_ctrl_c_in_a_callback_leaves_poll_and_fails_the_step(self):
        held = empty_like(weights_of(0))
        interrupts = [True]

        def commit(version):
            if interrupts:
                interrupts.clear()
                signal.raise_signal(signal.SIGINT)
        replica = self.enterContext(wsync.Replica(self.socket, "r0", held, commit=commit))
        publish = self.publisher.publish(weights_of(1))
        with self.assertRaises(KeyboardInterrupt):
            while publish.status().state < wsync.PublishState.COMMITTED:
                replica.poll(0.05)
        self.assertEqual(replica.error, "KeyboardInterrupt")
        self.fleet.serve(replica)  # it goes on, and the sidecar tries again
        until(lambda: publish.status().state >= wsync.PublishState.COMMITTED, "the end of the publish")
        self.committed(2)
        equal(self, held, weights_of(2))


class Collecting(Engines):
    def test_a_replica_that_is_dropped_detaches(self):
        replica = wsync.Replica(self.socket, "r0", empty_like(weights_of(0)))
        until(lambda: replica.poll(0.01) or replica.status().attached, "the attach")
        descriptors = len(os.listdir("/proc/self/fd"))
        gone = weakref.ref(replica)
        del replica
        gc.collect()
        self.assertIsNone(gone())
        self.assertLess(len(os.listdir("/proc/self/fd")), descriptors)
        # The name is free again.
        replica = wsync.Replica(self.socket, "r0", empty_like(weights_of(0)))
        self.fleet.serve(replica)
        self.committed(1)

    def test_a_started_replica_that_is_dropped_ends_its_thread(self):
        class Engine(wsync.Replica):
            def on_pause(self, pause):
                self.paused(0)
        replica = Engine(self.socket, "r0", empty_like(weights_of(0)))
        replica.start()
        thread = replica._thread
        self.committed(1)
        gone = weakref.ref(replica)
        del replica
        until(lambda: gc.collect() is not None and gone() is None, "the end of the replica")
        thread.join(DEADLINE_S)
        self.assertFalse(thread.is_alive())

    def test_the_last_reference_goes_in_a_callback(self):
        class Engine(wsync.Replica):
            def on_pause(self, pause):
                self.paused(0)

            def on_commit(self, version):
                box.clear()  # the library is in the middle of this step
        box = [Engine(self.socket, "r0", empty_like(weights_of(0)))]
        box[0].start()
        thread = box[0]._thread
        publish = self.publisher.publish(weights_of(1))
        until(lambda: publish.status().state >= wsync.PublishState.COMMITTED, "the end of the publish")
        until(lambda: gc.collect() is not None and not thread.is_alive(), "the end of the thread")

    def test_an_object_with_an_array_interface(self):
        array = np.zeros((64, 32), np.float32)
        self.fleet.serve(wsync.Replica(self.socket, "r0", {"x": Exporting(array)}))
        self.publisher.publish({"x": np.full((64, 32), 3, np.float32)}).wait(timeout=DEADLINE_S)
        self.assertTrue((array == 3).all())

    def test_memory_lives_as_long_as_the_library_writes_into_it(self):
        held = empty_like(weights_of(0))
        references = [weakref.ref(array) for array in held.values()]
        replica = wsync.Replica(self.socket, "r0", held)
        del held
        gc.collect()
        self.assertTrue(all(reference() is not None for reference in references))
        self.fleet.serve(replica)
        self.committed(1)
        equal(self, {name: reference() for name, reference in zip(NAMES, references)}, weights_of(1))


if __name__ == "__main__":
    unittest.main()
