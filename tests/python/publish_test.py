"""Publishing from NumPy: what arrives, what is converted, what is copied, and what is refused."""
import fcntl
import http.client
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
import tracemalloc
import unittest
import unittest.mock

import numpy as np
import wsync
import package_fleet
from wsync._native import EXECUTABLE
from package_fleet import DEADLINE_S, NAMES, PackageFleet, bf16, empty_like, equal, float_of, until, weights_of


class Publishing(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())

    def replica(self, held, name="r0", **options):
        replica = wsync.Replica(self.socket, name, held, **options)
        self.fleet.serve(replica)
        return replica

    def fleet_of(self, held):
        _, self.socket = self.fleet.sidecar()
        replica = self.replica(held)
        return replica, self.enterContext(self.fleet.publisher())

    def test_three_versions_arrive_byte_for_byte(self):
        held = empty_like(weights_of(0))
        replica, publisher = self.fleet_of(held)
        for step in (1, 2, 7):
            weights = weights_of(step)
            publish = publisher.publish(weights, step=step)
            for array in weights.values():
                array[:] = 0  # they may change as soon as publish() has returned
            status = publish.wait("committed", DEADLINE_S)
            self.assertEqual((status.state, status.step, str(status.version), status.replicas, status.code, status.reason),
                             (wsync.PublishState.COMMITTED, step, f"1.{step}", 1, None, ""))
            self.assertEqual(status.bytes, sum(array.nbytes for array in weights.values()))
            self.assertEqual(len(status.content_digest), 32)
            equal(self, held, weights_of(step))
        self.assertEqual(replica.status().active, wsync.Version(1, 7))

    def test_versions_go_on_above_the_highest_step_that_may_be_given(self):
        held = empty_like(weights_of(0))
        _, publisher = self.fleet_of(held)
        highest = 2**62 - 1
        publisher.publish(weights_of(1), step=highest).wait("committed", DEADLINE_S)
        for step in (highest + 1, highest + 2):  # which wsync chooses
            self.assertEqual(publisher.publish(weights_of(2)).wait("committed", DEADLINE_S).step, step)
        with self.assertRaisesRegex(wsync.InvalidInput, "expected 1 to 4611686018427387903"):
            publisher.publish(weights_of(3), step=highest + 3)

    def test_views_that_are_not_contiguous_arrive_as_they_look(self):
        base = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
        views = {"transposed": base.T, "strided": base[::3, 5:40:7], "reversed": base[::-1], "fortran": np.asfortranarray(base),
                 "scalar": np.float32(3.5), "row": base[5], "empty": base[:0], "read_only": base[2:4]}
        views["read_only"].flags.writeable = False
        held = {name: np.zeros(np.shape(view), np.float32) for name, view in views.items()}
        _, publisher = self.fleet_of(held)
        publisher.publish(views).wait(timeout=DEADLINE_S)
        for name, view in views.items():
            np.testing.assert_array_equal(held[name], view, name)

    def test_each_dtype_of_numpy_arrives(self):
        kinds = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]
        weights = {kind: np.arange(24).reshape(4, 6).astype(kind) for kind in kinds}
        weights["F8_E5M2"] = wsync.as_dtype(np.arange(24, dtype=np.uint8), "F8_E5M2")
        held = {name: np.zeros_like(array) for name, array in weights.items()}
        _, publisher = self.fleet_of(held)
        publisher.publish(weights).wait(timeout=DEADLINE_S)
        equal(self, held, weights)

    def test_f32_masters_are_rounded_to_bf16(self):
        values = np.random.default_rng(3).standard_normal((300, 7), np.float32)
        values[0, :4] = [1.00390625, 1.01171875, -1.00390625, 6.1e4]  # three ties
        held = {"a": wsync.as_dtype(np.zeros((300, 7), np.uint16), "BF16"), "count": np.zeros(2, np.int64)}
        _, publisher = self.fleet_of(held)
        weights = {"a": values, "count": np.array([5, 6])}
        publisher.publish(weights, dtype="BF16").wait(timeout=DEADLINE_S)
        equal(self, held, {"a": bf16(values), "count": weights["count"]})
        with publisher.version() as version:
            version.put("count", np.array([7, 8]))
            version.put("a", values.astype(np.float16))
        version.publish.wait(timeout=DEADLINE_S)
        equal(self, held, {"a": bf16(values.astype(np.float16).astype(np.float32)), "count": np.array([7, 8])})

    def test_a_dtype_may_have_any_usual_name(self):
        held = {"a": bf16(np.zeros((4, 6), np.float32))}
        _, publisher = self.fleet_of(held)

        class TorchDtype:
            """As torch.bfloat16 prints itself; torch is no part of this environment."""
            def __repr__(self):
                return "torch.bfloat16"
        TorchDtype.__module__, TorchDtype.__qualname__ = "torch", "dtype"
        TorchDtype.__name__ = "dtype"
        for value, dtype in enumerate(("BF16", "bf16", "bfloat16", "torch.bfloat16", TorchDtype()), 1):
            weights = {"a": np.full((4, 6), value, np.float32)}
            publisher.publish(weights, dtype=dtype).wait(timeout=DEADLINE_S)
            equal(self, held, {"a": bf16(weights["a"])})
            publisher.publish(weights, dtype={"a": dtype}).wait(timeout=DEADLINE_S)
            with publisher.version() as version:
                version.put("a", weights["a"] + 1, dtype=dtype)
            version.publish.wait(timeout=DEADLINE_S)
            equal(self, held, {"a": bf16(weights["a"] + 1)})

    def test_f8_with_scales_that_are_computed_or_given(self):
        values = np.random.default_rng(4).standard_normal((256, 130), np.float32) * 50
        f8 = wsync.as_dtype(np.zeros((256, 130), np.uint8), "F8_E4M3")
        held = {"a": f8, "a_scale_inv": np.zeros((2, 2), np.float32)}
        codes = f8.view(np.uint8)
        _, publisher = self.fleet_of(held)

        def published(scales, more=()):
            with publisher.version() as version:
                version.put("a", values, dtype="F8_E4M3", scales=scales)
                for name, tensor in more:
                    version.put(name, tensor)
            version.publish.wait(timeout=DEADLINE_S)
            # Three bits of mantissa: an error of 1/16 at most, of values that are not subnormal.
            scale = np.repeat(np.repeat(held["a_scale_inv"], 128, 0), 128, 1)[:, :130]
            exponent, mantissa = (codes.astype(np.int32) >> 3) & 15, codes & 7
            found = np.where(exponent, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0 ** -6)
            found *= np.where(codes & 128, -1, 1) * scale
            near = np.abs(values) > scale * 2.0 ** -6
            self.assertLess(np.max(np.abs(found - values)[near] / np.abs(values)[near]), 1 / 16 + 1e-6)

        published("compute")
        blocks = np.array([[np.abs(values[i:i + 128, j:j + 128]).max() for j in (0, 128)] for i in (0, 128)]) / 448
        np.testing.assert_allclose(held["a_scale_inv"], blocks, rtol=1e-6)
        computed, scales = codes.copy(), held["a_scale_inv"].copy()
        one = np.full((2, 2), 2, np.float32)
        published(2.0, [("a_scale_inv", one)])  # one scale for the whole part
        np.testing.assert_array_equal(held["a_scale_inv"], one)
        published(scales, [("a_scale_inv", scales)])  # one for each block
        np.testing.assert_array_equal(codes, computed)
        with self.assertRaises(wsync.InvalidInput) as caught, publisher.version() as version:
            version.put("a", values, dtype="F8_E4M3", scales=np.ones(3, np.float32))
        self.assertIn("3 scales are given, expected 1, or 4 for blocks of 128 x 128", caught.exception.sentence)

    def test_parts_in_any_order_from_several_threads(self):
        whole = weights_of(5, (96, 32))
        held = empty_like(whole)
        _, publisher = self.fleet_of(held)
        publisher.describe({name: wsync.Spec("BF16", (96, 32)) for name in NAMES})
        with publisher.version(step=9) as version:
            def put(begin):
                for name in reversed(NAMES):
                    version.put(name, whole[name][begin:begin + 32], shape=(96, 32), ranges=[(0, begin, 32)])
            threads = [threading.Thread(target=put, args=(begin,)) for begin in (64, 0, 32)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(version.publish.wait(timeout=DEADLINE_S).step, 9)
        equal(self, held, whole)

    def test_the_memory_of_a_version_is_written_in_place(self):
        held = empty_like(weights_of(0))
        _, publisher = self.fleet_of(held)
        publisher.describe(weights_of(0))
        weights = weights_of(1)
        with publisher.version() as version:
            views = {name: version.tensor(name) for name in NAMES}
            for name, view in views.items():
                self.assertEqual((view.dtype_name, view.shape, view.flags.writeable), ("BF16", (64, 32), True))
                view[:] = weights[name]
        version.publish.wait(timeout=DEADLINE_S)
        equal(self, held, weights)
        # Afterwards the arrays belong to no version: not to this one, and not to one that is written into the same memory.
        for view in views.values():
            self.assertEqual(view.max(), 0)
            view[:] = 0xFFFF
        for step in range(2, 8):
            weights = weights_of(step)
            with publisher.version() as version:
                for name in NAMES:
                    version.tensor(name)[:] = weights[name]
                for view in views.values():
                    view[:] = 0x1234
            version.publish.wait(timeout=DEADLINE_S)
            equal(self, held, weights)

    def test_a_view_outlives_its_publisher(self):
        publisher = self.fleet.publisher()
        publisher.describe(weights_of(0))
        version = publisher.version()
        view = version.tensor(NAMES[0])
        view[:] = 7
        version.abandon()
        publisher.close()
        del publisher, version
        view[:] = 8
        self.assertEqual(view[3, 3], 8)

    def test_tied_weights(self):
        shared = weights_of(1)[NAMES[0]]
        weights = {"model.embed_tokens.weight": shared, "lm_head.weight": shared}
        held = {"model.embed_tokens.weight": wsync.as_dtype(np.zeros((64, 32), np.uint16), "BF16")}
        _, publisher = self.fleet_of(held)
        status = publisher.publish(weights).wait(timeout=DEADLINE_S)
        self.assertEqual(status.bytes, shared.nbytes)
        equal(self, held, {"model.embed_tokens.weight": shared})
        # Each name is published if that is wanted, and equal bytes in other memory are not tied: this engine refuses both.
        for publish, word in ((publisher.publish(weights, tied="every"), "lm_head.weight"),
                              (publisher.publish(weights | {"copy": shared.copy()}), "copy")):
            with self.assertRaises(wsync.Refused) as caught:
                publish.wait(timeout=DEADLINE_S)
            self.assertIn(word, caught.exception.sentence)

    def test_two_replicas_serve_it(self):
        held = [empty_like(weights_of(0)) for _ in range(2)]
        _, self.socket = self.fleet.sidecar()
        for number in range(2):
            self.replica(held[number], f"r{number}")
        publisher = self.enterContext(self.fleet.publisher(min_replicas=2))
        self.assertEqual(publisher.publish(weights_of(1)).wait(timeout=DEADLINE_S).replicas, 2)
        for one in held:
            equal(self, one, weights_of(1))
        publisher.publish(weights_of(2)).wait(timeout=DEADLINE_S)
        undone = publisher.roll_back()
        self.assertEqual((str(undone.before), str(undone.after)), ("1.2", "1.1"))
        for one in held:
            equal(self, one, weights_of(1))
        with self.assertRaises(wsync.Refused):
            publisher.roll_back("1.2")  # it is withdrawn

    def test_two_ranks_publish_their_parts(self):
        whole = weights_of(6, (64, 32))
        held = empty_like(whole)
        _, self.socket = self.fleet.sidecar()
        self.replica(held)
        program = self.fleet.program(RANK_1, self.fleet.run_dir, self.fleet.path("state_1"))
        publisher = self.enterContext(wsync.Publisher(settings=self.fleet.settings, rank=0, world_size=2))
        for step in (1, 2):
            parts = {name: wsync.Shard(whole[name][:40], (64, 32), [(0, 0, 40)]) for name in NAMES}
            publisher.publish(parts, step=step).wait(timeout=DEADLINE_S)
            equal(self, held, whole)
        code, _, said = self.fleet.end(program)
        self.assertEqual(code, 0, said)
        publisher.close()


RANK_1 = """
import sys
import wsync
import package_fleet
from package_fleet import DEADLINE_S, NAMES, weights_of
whole = weights_of(6, (64, 32))
settings = {"run_dir": sys.argv[1], "state_dir": sys.argv[2], "log.level": "warning", "bucket_bytes": "1MiB"}
with wsync.Publisher(settings=settings, rank=1, world_size=2) as publisher:
    for step in (1, 2):
        parts = {name: wsync.Shard(whole[name][40:], (64, 32), [(0, 40, 24)]) for name in NAMES}
        publisher.publish(parts, step=step).wait("committed", DEADLINE_S)
"""


MIB = 1 << 20


class Copies(unittest.TestCase):
    """The weights are copied once, by the library, into the memory from which the engines read."""

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.fleet.sidecar()
        self.publisher = self.enterContext(self.fleet.publisher(min_replicas=0))

    def copied(self):
        """Bytes that the library has copied into snapshots, as the page of the trainer says."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        self.addCleanup(connection.sock.close)
        connection.sock.connect(os.path.join(self.fleet.run_dir, "control.http"))
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        found = re.search(r'^wsync_update_bytes_total\{stage="snapshot"\} (\S+)$', page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def publish(self, weights):
        """Publishes several times, until every snapshot is in memory. Of the last time: the bytes that the library has copied, the
        memory that NumPy and Python have taken meanwhile, and the memory of the process beyond that before, but for snapshots."""
        for _ in range(6):
            self.publisher.publish(weights).wait(timeout=DEADLINE_S)
        copied, before = self.copied(), private_bytes()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # the peak is now what is resident
        tracemalloc.start()
        try:
            publish = self.publisher.publish(weights)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        peak = status_bytes("VmHWM") - status_bytes("RssShmem")
        publish.wait(timeout=DEADLINE_S)
        return self.copied() - copied, taken, peak - before

    def test_nothing_else_is_copied(self):
        weights = {f"w{i}": np.full((4096, 1024), i, np.float32) for i in range(4)}
        copied, taken, grown = self.publish(weights)
        self.assertEqual(copied, 64 * MIB)
        self.assertLess(taken, MIB)
        self.assertLess(grown, 8 * MIB)  # of one tensor it would be 16 MiB

    def test_a_copy_would_be_noticed(self):
        """A tensor that is not contiguous is copied as a whole, one after the other."""
        weights = {f"w{i}": np.full((4096, 1024), i, np.float32).T for i in range(4)}
        copied, taken, _ = self.publish(weights)
        self.assertEqual(copied, 64 * MIB)
        self.assertGreaterEqual(taken, 16 * MIB)
        self.assertLess(taken, 17 * MIB)

    def test_thousands_of_tensors(self):
        weights = {f"w{i}": np.full(2048, i, np.float32) for i in range(5000)}
        copied, taken, _ = self.publish(weights)
        self.assertEqual(copied, sum(array.nbytes for array in weights.values()))
        self.assertLess(taken, 4 * MIB)  # 40 MB of weights


def status_bytes(*fields):
    with open("/proc/self/status", encoding="ascii") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.partition(":")[0] in fields)


def private_bytes():
    return status_bytes("RssAnon", "RssFile")


FIRST = """
import sys
import wsync
publisher = wsync.Publisher(settings={"run_dir": sys.argv[1], "state_dir": sys.argv[2], "log.level": "warning"})
print("ready", flush=True)
sys.stdin.read()
"""


class Interrupts(unittest.TestCase):
    """Ctrl-C may come between any two lines of Python. Afterwards the same publisher publishes again."""

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.publisher = self.enterContext(self.fleet.publisher())
        self.weights = {"a": np.arange(6, dtype=np.float32)}
        self.publisher.publish(self.weights)

    def interrupted(self, owner, name, after):
        """A publish during which the function raises, before or after it has done its work."""
        function = getattr(owner, name)

        def interrupt(*arguments):
            if after:
                function(*arguments)
            raise KeyboardInterrupt

        with unittest.mock.patch.object(owner, name, interrupt), self.assertRaises(KeyboardInterrupt) as caught:
            self.publisher.publish(self.weights)
        self.kept = caught.exception  # as an interactive Python keeps the last one, with its frames
        self.publisher.publish(self.weights)

    def test_in_each_function_of_a_publish(self):
        package = wsync.publisher
        for owner, name in ((package._tensors, "describe_all"), (package, "wait_for_torch"), (package, "put_all"),
                            (package.Draft, "__enter__"), (package.Draft, "_detach"), (package.Publisher, "_describe")):
            for after in (False, True):
                with self.subTest(f"{name}, {after}"):
                    self.interrupted(owner, name, after)

    def test_when_a_version_has_begun(self):
        raw = self.publisher._raw

        class Interrupting:
            def begin(self, step):
                raw.begin(step)
                raise KeyboardInterrupt

            def __getattr__(self, name):
                return getattr(raw, name)

        for call in (lambda: self.publisher.publish(self.weights), self.publisher.version):
            with unittest.mock.patch.object(self.publisher, "_raw", Interrupting()), self.assertRaises(KeyboardInterrupt):
                call()
            self.publisher.publish(self.weights)

    def test_a_version_that_is_open_is_named_by_the_line_that_began_it(self):
        version = self.publisher.version(step=26)
        line = sys._getframe().f_lineno - 1
        for call in (self.publisher.version, lambda: self.publisher.publish(self.weights)):
            with self.assertRaisesRegex(wsync.InvalidInput, "a version is open, which was begun at .*"
                                        f"publish_test.py:{line}: end or abandon it first"):
                call()
        version.abandon()
        self.publisher.publish(self.weights)

    def test_what_belongs_to_a_process_is_not_pickled(self):
        class Own(wsync.Publisher):
            pass
        with Own(settings=self.fleet.settings | {"run_dir": self.fleet.path("own"), "state_dir": self.fleet.path("own_state")}) as own:
            for held, name in ((self.publisher, "Publisher"), (own, "Publisher"),
                               (self.publisher.publish(self.weights), "Publish")):
                with self.assertRaisesRegex(TypeError, f"^a {name} belongs to its process; make one there$"):
                    pickle.dumps(held)

    def test_a_version_that_nobody_holds_any_longer(self):
        draft = self.publisher.version()
        draft.put("a", self.weights["a"])
        with self.assertRaisesRegex(wsync.InvalidInput, "is open"):
            self.publisher.publish(self.weights)
        del draft
        self.publisher.publish(self.weights)


class Refusals(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())

    def test_a_setting_with_a_wrong_key(self):
        with self.assertRaises(wsync.InvalidInput) as caught:
            wsync.Publisher(settings={"bucket_byte": "1MiB"})
        failure = caught.exception
        self.assertEqual((failure.code, failure.sentence, str(failure)), (wsync.Code.INVALID_INPUT, str(failure), failure.sentence))
        self.assertEqual("settings: bucket_byte: unknown key; did you mean bucket_bytes?", failure.sentence)
        self.assertIsInstance(failure, ValueError)
        for settings, said in (({"deadlines": {"publish": "soon"}}, "settings: deadlines.publish: expected a duration"),
                               (["bucket_bytes"], "settings bucket_bytes: expected key=value"),
                               ("bucket_bytes", "settings bucket_bytes: expected key=value"),
                               (5, "settings is 5, expected a mapping"), ({5: 6}, "settings has the key 5, expected a text")):
            with self.assertRaises(wsync.InvalidInput) as caught:
                wsync.Publisher(settings=settings)
            self.assertIn(said, caught.exception.sentence)
            self.assertNotIn("--set", caught.exception.sentence)

    def test_what_is_no_dtype_and_no_step(self):
        publisher = self.enterContext(self.fleet.publisher())
        weights = {"a": np.zeros(4, np.float32)}
        for dtype, said in (("bf61", "dtype 'bf61' is unknown; did you mean 'BF16'? expected"), (5, "dtype is 5, which is none; expected"),
                            ("", "dtype '' is unknown; expected"), (np.complex128, "which is none"), (object(), "which is none"),
                            ({"a": "bfloat"}, None), ({"a": "bfloat61"}, "tensor a: dtype 'bfloat61' is unknown; did you mean 'BF16'?")):
            if said is None:
                publisher.publish(weights, dtype=dtype)
                continue
            with self.assertRaises(wsync.InvalidInput) as caught:
                publisher.publish(weights, dtype=dtype)
            self.assertIn(said, caught.exception.sentence)
        with self.assertRaises(wsync.InvalidInput) as caught:
            with publisher.version() as version:
                version.put("a", weights["a"], dtype="F23")
        self.assertIn("tensor a: dtype 'F23' is unknown; did you mean 'F32'?", caught.exception.sentence)
        for step, said in (("14", "step is '14' (str), expected a whole number such as 14; did you mean 14?"),
                           ("x", "step is 'x' (str), expected a whole number such as 14"), (14.0, "step is 14.0 (float), expected"),
                           (True, "step is True (bool)"), (b"1", "(bytes)"), (0, "step is 0, expected 1 to 4611686018427387903"), (-1, "step is -1"),
                           (2**62, "expected 1 to 4611686018427387903, which leaves room for later versions"), (2**63, "expected 1 to")):
            for call in (lambda: publisher.publish(weights, step=step), lambda: publisher.version(step)):
                with self.assertRaises(ValueError) as caught:
                    call()
                self.assertIsInstance(caught.exception, wsync.InvalidInput)
                self.assertIn(said, str(caught.exception))
                self.assertEqual("leaves room" in str(caught.exception), step in (2**62, 2**63), step)
        self.assertEqual(publisher.publish(weights, step=np.int64(14)).step, 14)

    def test_names_of_dtypes(self):
        for given, name in ((np.float16, "F16"), (np.dtype("float64"), "F64"), ("half", "F16"), ("float16", "F16"), ("FP32", "F32"),
                            ("float", "F32"), ("fp8_e4m3", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"), ("f8_e4m3", "F8_E4M3"), (bool, "BOOL"),
                            ("torch.float8_e4m3fn", "F8_E4M3"), ("i8", "I8"), (np.uint32, "U32")):
            self.assertEqual(wsync.Spec(given, (2,)).dtype, name, given)
        self.assertEqual(wsync.Spec("F4", (2,)).dtype, "F4")  # a version may have it
        with self.assertRaises(wsync.InvalidInput):
            wsync.Spec(7, (2,))
        self.assertEqual(wsync.as_dtype(np.zeros(4, np.uint16), "bfloat16").dtype_name, "BF16")

    def test_two_publishers_of_one_process(self):
        first = self.fleet.publisher()
        with self.assertRaises(wsync.Busy) as caught:
            self.fleet.publisher()
        self.assertEqual(caught.exception.code, wsync.Code.BUSY)
        where = f"{package_fleet.__file__}:{self.fleet.publisher.__code__.co_firstlineno + 1}"
        self.assertTrue(caught.exception.sentence.startswith(f"this process already has a Publisher of this fleet, which was made at {where}: "
                                                             "close it first"), caught.exception.sentence)
        first.close()
        self.fleet.publisher().close()

    def test_a_trainer_in_another_process_has_the_address(self):
        other = self.fleet.program(FIRST, self.fleet.run_dir, self.fleet.path("state"))
        self.fleet.ready(other)
        with self.assertRaises(wsync.Busy) as caught:
            self.fleet.publisher()
        self.assertIn(f"is held by process {other.pid}: stop it", caught.exception.sentence)
        self.assertIn("if that process hangs, start a trainer with --take-over (`take_over: true` in its settings)",
                      caught.exception.sentence)

    def test_a_publisher_waits_for_a_command_and_can_be_interrupted(self):
        os.makedirs(self.fleet.run_dir, 0o700)
        path = os.path.join(self.fleet.run_dir, "control.lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, f"{os.getpid()} wsync push".encode())
        programs = [self.fleet.program(FIRST.replace("warning", "info"), self.fleet.run_dir, self.fleet.path("state")) for _ in range(2)]
        for program in programs:
            until(lambda: f"is held by process {os.getpid()} (wsync push), which ends by itself" in self.fleet.said(program)
                  or program.poll() is not None, "what it waits for")
            self.assertIsNone(program.poll(), self.fleet.said(program))
        programs[0].send_signal(signal.SIGINT)
        code, _, said = self.fleet.end(programs[0])
        self.assertNotEqual(code, 0)
        self.assertIn("KeyboardInterrupt", said)
        os.unlink(path)
        fcntl.flock(lock, fcntl.LOCK_UN)
        self.fleet.ready(programs[1])

    def test_a_publish_waits_for_nobody_and_a_wait_ends_in_time(self):
        publisher = self.enterContext(self.fleet.publisher())
        publish = publisher.publish(weights_of(1))  # there is no sidecar
        self.assertEqual(publish.wait("snapshotted").state, wsync.PublishState.SNAPSHOTTED)
        with self.assertRaises(TimeoutError) as caught:
            publish.wait("committed", timeout=0.2)
        self.assertIsInstance(caught.exception, wsync.DeadlineExceeded)
        self.assertEqual(caught.exception.status.state, wsync.PublishState.SNAPSHOTTED)
        self.assertIn(caught.exception.status.reason, str(caught.exception))
        self.assertIn("sidecar", str(caught.exception))
        newer = publisher.publish(weights_of(2))
        with self.assertRaises(wsync.Cancelled) as caught:
            publish.wait("committed", timeout=DEADLINE_S)
        self.assertEqual(caught.exception.status.state, wsync.PublishState.SUPERSEDED)
        self.assertEqual(newer.status().state, wsync.PublishState.SNAPSHOTTED)

    def test_a_wait_says_early_what_is_missing(self):
        publisher = self.enterContext(self.fleet.publisher())
        publish = publisher.publish(weights_of(1), step=1)
        ended = []
        waits = [threading.Thread(target=lambda timeout=timeout: ended.append(publish.wait("committed", timeout).state))
                 for timeout in (None, 2 * DEADLINE_S)]
        with self.assertLogs("wsync", "WARNING") as logged:
            for thread in waits:
                thread.start()
            until(lambda: len(logged.output) == 2, "what the waits say")
        for line in logged.output:
            self.assertIn("the publish of step 1 is not on its way yet: 0 of at least 1 sidecars have joined", line)
            self.assertIn(f": start one with `wsync sidecar --set name=host0 --set coordinator=ipc://{self.fleet.run_dir}/control` on the "
                          "host of the engines; wait() waits for it ", line)
        self.assertEqual(sorted(bool(re.search("it until [0-9:]{8}$", line)) for line in logged.output), [False, True])
        self.assertEqual(sum(line.endswith("it without a limit") for line in logged.output), 1)
        command = re.search("`wsync ([^`]*)`", logged.output[0])[1]
        self.fleet.start(EXECUTABLE, *command.split())  # as it is copied from the sentence
        self.fleet.serve(wsync.Replica(f"{self.fleet.run_dir}/host0.engines", "r0", empty_like(weights_of(0))))
        for thread in waits:
            thread.join(DEADLINE_S)
        self.assertEqual(ended, [wsync.PublishState.COMMITTED] * 2)

    def test_a_wait_that_is_over_names_what_it_waited_for(self):
        _, socket = self.fleet.sidecar("host", "--set", "engine_deadline=10m")
        replica = wsync.Replica(socket, "stands still", empty_like(weights_of(0)), serving=True)
        self.addCleanup(replica.close)
        end = time.monotonic() + DEADLINE_S
        while not replica.status().attached:
            replica.poll(0.02)
        publisher = self.enterContext(self.fleet.publisher(**{"deadlines.pause": "10m"}))
        publish = publisher.publish(weights_of(1), step=1)  # the engine polls no more, so it is never paused
        sentence = ""
        while "'stands still' of sidecar 'host'" not in sentence:
            self.assertLess(time.monotonic(), end, sentence)
            with self.assertRaises(wsync.DeadlineExceeded) as caught:
                publish.wait("committed", timeout=0.1)
            sentence = caught.exception.sentence
        self.assertIn("is staged at the deadline, and not committed: not served yet by replica", sentence)
        self.assertIn(caught.exception.status.reason, sentence)

    def test_what_an_engine_refuses(self):
        held = empty_like(weights_of(0))
        _, socket = self.fleet.sidecar()
        self.fleet.serve(wsync.Replica(socket, "r0", held))
        publisher = self.enterContext(self.fleet.publisher())
        weights = weights_of(1)
        publisher.publish(weights).wait(timeout=DEADLINE_S)
        other_names = {name.replace("mlp.weight", "mlp.up_proj.weight"): array for name, array in weights.items()}
        as_f32 = {name: float_of(array) for name, array in weights.items()}
        for wrong, found, words in (
                (other_names, None, ["model.layers.0.mlp.weight", "nearest: model.layers.0.mlp.up_proj.weight"]),
                (as_f32, "F32 [64, 32]", ["model.layers.0.mlp.weight", "the engine expects BF16, but the published tensor has F32"])):
            with self.assertRaises(wsync.Refused) as caught:
                publisher.publish(wrong).wait(timeout=DEADLINE_S)
            status = caught.exception.status
            self.assertEqual((status.state, status.code, status.replicas), (wsync.PublishState.FAILED, wsync.Code.REFUSED, 0))
            self.assertEqual(status.reason, caught.exception.sentence)
            self.assertEqual((caught.exception.tensor, caught.exception.expected, caught.exception.found), (NAMES[0], "BF16 [64, 32]", found))
            for word in words:
                self.assertIn(word, caught.exception.sentence)
        equal(self, held, weights)  # it serves what it served
        publisher.publish(weights_of(2)).wait(timeout=DEADLINE_S)
        equal(self, held, weights_of(2))

    def test_what_the_package_refuses_names_the_tensor(self):
        publisher = self.enterContext(self.fleet.publisher())
        swapped = np.zeros(4, np.dtype(np.float32).newbyteorder())
        for wrong, word in (([1.0], "list"), (np.array(["x"]), "<U1"), (swapped, swapped.dtype.str),
                            (np.zeros(2, np.complex128), "complex"),
                            (wsync.Spec("BF16", (2,)), "Spec, which has no memory"), (wsync.Shard(np.zeros(3), (9,), [(0, 0, 4)]), "ranges"),
                            (wsync.Shard(np.zeros((2, 2)), (4, 4), [(0, 0, 2), (1, 0, 2)]), "2 ranges")):
            with self.assertRaises(wsync.InvalidInput) as caught:
                publisher.publish({"good": np.zeros(3), "bad": wrong})
            self.assertEqual(caught.exception.tensor, "bad", wrong)
            self.assertIn(word, caught.exception.sentence)
        with self.assertRaises(wsync.InvalidInput) as caught:
            publisher.publish({"x": np.zeros(3, np.int32)}, dtype={"x": "BF16"})
        self.assertEqual(caught.exception.tensor, "x")
        with self.assertRaises(wsync.InvalidInput):
            publisher.publish(weights_of(1), step=0)
        # None of these has left a version open.
        publisher.publish(weights_of(1)).wait("snapshotted")

    def test_what_a_version_refuses(self):
        publisher = self.enterContext(self.fleet.publisher())
        publisher.describe(weights_of(0))
        array = weights_of(0)[NAMES[0]]
        with self.assertRaises(wsync.NotFound) as caught:
            with publisher.version() as version:
                version.put("model.layer.0.mlp.weight", array)
        self.assertEqual(caught.exception.tensor, "model.layer.0.mlp.weight")
        with self.assertRaises(wsync.Refused) as caught:
            version.put(NAMES[0], array)  # after the end
        self.assertIn("ended or abandoned", caught.exception.sentence)
        with self.assertRaises(wsync.Refused) as caught:
            with publisher.version() as version:
                version.put(NAMES[0], array)
                version.put(NAMES[0], array)
        self.assertEqual(caught.exception.tensor, NAMES[0])
        with self.assertRaises(wsync.Refused) as caught:
            with publisher.version() as version:
                version.put(NAMES[0], array)
        self.assertIn(NAMES[1], caught.exception.sentence)  # it is not complete
        version = publisher.version()
        with self.assertRaises(wsync.InvalidInput):
            publisher.version()  # one at a time
        version.abandon()
        with self.assertRaises(ZeroDivisionError):
            with publisher.version() as version:
                version.put(NAMES[0], array)
                1 / 0
        publisher.publish(weights_of(1)).wait("snapshotted")

    def test_no_tensors_and_dtypes_that_do_not_fit(self):
        publisher = self.enterContext(self.fleet.publisher())
        with self.assertRaisesRegex(wsync.InvalidInput, "no tensors were given"):
            publisher.publish({})
        with self.assertRaisesRegex(wsync.InvalidInput, "dtype names tensor a.wieght, which was not given; did you mean a.weight") as caught:
            publisher.publish({"a.weight": np.zeros(4, np.float32)}, dtype={"a.wieght": "BF16"})
        self.assertEqual(caught.exception.tensor, "a.wieght")
        with self.assertRaisesRegex(wsync.InvalidInput, "tensor a has the dtype F64, which is not converted to F32: convert it first"):
            publisher.publish({"a": np.zeros(4)}, dtype="F32")

    def test_what_are_no_tensors(self):
        publisher = self.enterContext(self.fleet.publisher())
        array = np.zeros(3, np.float32)
        for wrong, word in ((None, "NoneType"), (7, "int"), (array, "ndarray"), ("text", "str")):
            with self.assertRaisesRegex(wsync.InvalidInput, f"tensors is a {word}, expected a mapping"):
                publisher.publish(wrong)
        with self.assertRaisesRegex(wsync.InvalidInput, r"tensors has a ndarray, expected \(name, tensor\) pairs"):
            publisher.publish([array])
        publisher.publish(iter([("a", array)]))

    def test_what_is_no_name(self):
        publisher = self.enterContext(self.fleet.publisher())
        for name in ("a\0b", "", "a\ud800", 7, None):
            with self.assertRaisesRegex(wsync.InvalidInput, "the name of a tensor is "):
                publisher.publish({name: np.zeros(4, np.float32)})
            with self.assertRaisesRegex(wsync.InvalidInput, "the name of a tensor is "):
                publisher.describe({name: wsync.Spec("F32", (4,))})

    def test_a_closed_publisher(self):
        publisher = self.fleet.publisher()
        publish = publisher.publish(weights_of(1))
        waited = []

        def wait():
            try:
                publish.wait("committed")
            except wsync.Error as failure:
                waited.append(failure)

        thread = threading.Thread(target=wait)
        thread.start()
        publisher.close()
        publisher.close()
        thread.join(DEADLINE_S)
        self.assertIsInstance(waited[0], (wsync.Closed, wsync.Cancelled))
        self.assertTrue(publisher.closed)
        for call in (publish.status, publisher.check, publisher.version, publisher.roll_back,
                     lambda: publisher.publish(weights_of(2)),
                     lambda: publish.wait("snapshotted")):
            with self.assertRaises(wsync.Closed):
                call()

    def test_a_publish_while_a_version_is_open(self):
        publisher = self.enterContext(self.fleet.publisher())
        with publisher.version() as version:
            with self.assertRaises(wsync.InvalidInput) as caught:
                publisher.publish(weights_of(2))
            self.assertIn("is open", caught.exception.sentence)
            for name, array in weights_of(1).items():
                version.put(name, array)
        self.assertEqual(version.publish.wait("snapshotted").state, wsync.PublishState.SNAPSHOTTED)


if __name__ == "__main__":
    unittest.main()
