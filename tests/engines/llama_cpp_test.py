"""Models of llama.cpp, loaded from real files of GGUF by xllamacpp, that generate while versions come."""
import ctypes
import os
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import torch
from vllm_fleet import DEADLINE_S, VllmFleet

import llama
import models
import wsync
import wsync.llama_cpp

PROMPT = [72, 101, 108, 108, 111]
WORK = tempfile.TemporaryDirectory(prefix="wsync-models-")
MATRICES = {"moe": 2 + 3 * 4 + 3 * 3 * 8, "dense": 1 + 3 * 7}  # of the checkpoints, without routers


def path(name):
    return os.path.join(WORK.name, name)


def setUpModule():
    for word, dtype in ("BF16", torch.bfloat16), ("F32", torch.float32):
        for half, seed in ("a", 1), ("b", 2):
            models.save(path(f"moe_{half}_{word}"), models.mixture, seed, half, dtype)
            models.save(path(f"dense_{half}_{word}"), models.dense, seed, dtype=dtype)
    models.save(path("other_BF16"), lambda: models.mixture(2), 3)


def tearDownModule():
    WORK.cleanup()


def gguf(checkpoint, kind):
    """The file of GGUF of a checkpoint, made once."""
    file = path(f"{checkpoint}.{kind}.gguf")
    return file if os.path.exists(file) else llama.write(path(checkpoint), file, kind)


class Engine:
    """A program that generates, as a user would write it: it polls between two decodes, and computes its cache again when the
    version has changed."""

    def __init__(self, case, socket, file, dtype="BF16", **options):
        self.model = llama.Model(file)
        self.link = wsync.llama_cpp.attach(self.model.address, socket, "r0", dtype=dtype, **options)
        self.tokens, self.versions = [], []
        self.context, self.computed_with = None, None
        self.limit = 0  # of tokens
        self.ended = threading.Event()
        self.failure = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        case.addCleanup(self.stop)

    def _run(self):
        try:
            while not self.ended.is_set():
                decodes = self.link.serving and len(self.tokens) < self.limit
                self.link.poll(0 if decodes else 0.02)
                if self.link.serving and decodes:
                    self._decode()
                    self.link.step += 1
        except BaseException as failure:  # the test says what it was
            self.failure = failure

    def _decode(self):
        if self.context is None or self.computed_with != self.link.version:
            if self.context is not None:
                self.context.free()
            self.context, self.computed_with = self.model.context(), self.link.version
            token = self.context.next(PROMPT + self.tokens)
        else:
            token = self.context.next(self.tokens[-1:])
        self.tokens.append(token)
        self.versions.append(self.link.version)

    def stop(self):
        self.ended.set()
        self.thread.join()
        if self.model is not None:
            self.link.close()
            if self.context is not None:
                self.context.free()
            self.model.free()
            self.model = None
        if self.failure is not None:
            raise self.failure

    def greedy(self, count=32):
        """Tokens of a sequence of their own, while the loop of the engine stands still."""
        assert self.ended.is_set()
        return llama.greedy(self.model, PROMPT, count)


def fresh(file, count=32):
    model = llama.Model(file)
    try:
        return llama.greedy(model, PROMPT, count)
    finally:
        model.free()


class LlamaCpp(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(VllmFleet())
        self.sidecar, self.socket = self.fleet.sidecar("s0")

    def polled(self, link, until, what):
        end = time.monotonic() + DEADLINE_S
        while not until():
            link.poll(0.02)
            self.assertLess(time.monotonic(), end, f"{what} did not come")

    def test_tokens_are_those_of_a_fresh_load_of_the_second_file(self):
        for shape, kind, dtype, in_place in (("moe", "BF16", "BF16", MATRICES["moe"]), ("dense", "BF16", "BF16", MATRICES["dense"]),
                                             ("moe", "F32", "F32", None), ("dense", "F32", "BF16", 0),
                                             ("moe", "BF16", "F32", 16)):  # norms and routers
            with self.subTest(f"{shape}: {kind} in memory, versions in {dtype}"), VllmFleet() as fleet:
                _, socket = fleet.sidecar("s0")
                fleet.start("trainer")
                model = llama.Model(gguf(f"{shape}_a_{dtype}", kind))
                link = wsync.llama_cpp.attach(model.address, socket, "r0", names={"moe": "qwen3moe", "dense": "qwen3"}[shape],
                                              dtype=dtype)
                whole = link.in_place + len(link.converted)
                self.assertEqual(link.in_place, whole if in_place is None else in_place)
                before = llama.greedy(model, PROMPT, 32)
                self.polled(link, lambda: fleet.replicas().get("r0", {}).get("ready"), "the replica")
                for half in "ba":
                    pushed = []
                    thread = threading.Thread(target=lambda: pushed.append(fleet.ask("push", path(f"{shape}_{half}_{dtype}"))))
                    thread.start()
                    self.polled(link, lambda: not thread.is_alive(), "the end of the push")
                    code, answer = pushed[0]
                    self.assertEqual(code, 0, answer)
                    self.assertEqual(str(link.version), answer["result"]["version"])
                    after = llama.greedy(model, PROMPT, 32)
                    self.assertEqual(after, fresh(gguf(f"{shape}_{half}_{dtype}", kind)))
                    if half == "b":
                        self.assertNotEqual(after, before)
                print(f"\n{shape}, {kind} in memory, versions in {dtype}: {link.in_place} of {whole} tensors in place, stood still "
                      f"{answer['result']['replicas'][0]['paused_ns'] / 1e6:.2f} ms", file=sys.stderr)
                link.close()
                model.free()

    def test_each_switch_is_between_two_decodes(self):
        engine = Engine(self, self.socket, gguf("moe_a_F32", "F32"), "F32", fused_experts=True)
        self.assertEqual(engine.link.converted, [f"model.layers.{layer}.mlp.experts.gate_up_proj" for layer in range(3)])
        states = {half: models.loaded(path(f"moe_{half}_F32")).state_dict() for half in "ab"}
        with wsync.Publisher(settings={"run_dir": self.fleet.run_dir, "state_dir": self.fleet.path("state")}) as publisher:
            statuses = []
            for number in range(12):
                engine.limit = len(engine.tokens) + 60  # while the version comes
                statuses.append(publisher.publish(states["ba"[number % 2]]).wait("committed"))
                engine.limit = len(engine.tokens) + 5
                self.fleet.until(lambda: len(engine.tokens) == engine.limit, "five tokens more")
        engine.stop()
        halves = [next(half for half, of in models.HALVES.items() if token in of) for token in engine.tokens]
        told = ["a" if version is None or version.step % 2 == 0 else "b" for version in engine.versions]
        self.assertEqual(halves, told)
        switches = sum(one != two for one, two in zip(halves, halves[1:]))
        self.assertEqual(switches, 12)
        # Computed again by models that never switch, decode by decode: a mixture of two versions gives other tokens.
        fresh_models = {half: llama.Model(gguf(f"moe_{half}_F32", "F32")) for half in "ab"}
        context, again = None, []
        for index, half in enumerate(halves):
            if index == 0 or engine.versions[index] != engine.versions[index - 1]:
                context = fresh_models[half].context()
                again.append(context.next(PROMPT + engine.tokens[:index]))
            else:
                again.append(context.next(engine.tokens[index - 1:index]))
        self.assertEqual(again, engine.tokens)
        pauses = sorted(status.paused_s * 1e3 for status in statuses)
        print(f"\n{switches} switches in {len(engine.tokens)} tokens; stood still {pauses[len(pauses) // 2]:.2f} ms in the median",
              file=sys.stderr)

    def test_a_sidecar_that_is_killed_and_comes_back(self):
        engine = Engine(self, self.socket, gguf("moe_a_BF16", "BF16"), fused_experts=True)
        with wsync.Publisher(settings={"run_dir": self.fleet.run_dir, "state_dir": self.fleet.path("state")}) as publisher:
            first = publisher.publish(models.loaded(path("moe_b_BF16")).state_dict()).wait("committed")
            self.sidecar.kill()
            self.sidecar.wait()
            self.fleet.until(lambda: not engine.link.status().attached, "the loss of the sidecar")
            engine.limit = 10
            self.fleet.until(lambda: len(engine.tokens) == 10, "tokens without a sidecar")
            self.assertEqual(engine.link.version, first.version)
            os.remove(self.socket)
            self.fleet.sidecar("s0")
            self.fleet.until(lambda: engine.link.status().attached, "the next sidecar")
            second = publisher.publish(models.loaded(path("moe_a_BF16")).state_dict()).wait("committed")
            self.assertEqual((second.replicas, engine.link.version), (1, second.version))
        engine.ended.set()
        engine.thread.join()
        self.assertEqual(engine.greedy(), fresh(gguf("moe_a_BF16", "BF16")))

    def test_its_version_is_only_what_the_model_has(self):
        engine = Engine(self, self.socket, gguf("moe_a_BF16", "BF16"), fused_experts=True)
        link = engine.link
        with wsync.Publisher(settings={"run_dir": self.fleet.run_dir, "state_dir": self.fleet.path("state")}) as publisher:
            first = publisher.publish(models.loaded(path("moe_b_BF16")).state_dict()).wait("committed")
            self.assertEqual(link.version, first.version)
            seen = []

            def fail(source, target):
                seen.append(link.version)
                raise ValueError("half-way")
            with mock.patch("wsync.llama_cpp._convert", fail):
                second = publisher.publish(models.loaded(path("moe_a_BF16")).state_dict())
                self.fleet.until(lambda: "half-way" in (link.error or ""), "the failure")
                self.assertEqual((seen[0], link.version), (None, None))
            self.fleet.until(lambda: link.version == second.status().version, "the newest version")
            link.suspend()
            self.assertIsNone(link.version)
            link.resume()
            self.fleet.until(lambda: link.version == second.status().version, "the version again")
        engine.ended.set()
        engine.thread.join()
        self.assertEqual(engine.greedy(), fresh(gguf("moe_a_BF16", "BF16")))

    def test_versions_of_other_models_are_refused(self):
        self.fleet.start("trainer")
        engine = Engine(self, self.socket, gguf("moe_a_BF16", "BF16"))
        self.fleet.until(lambda: self.fleet.replicas().get("r0", {}).get("ready"), "the replica")
        for name, word in ("other_BF16", "model.layers.2"), ("dense_b_BF16", "lm_head.weight"), ("moe_b_F32", "F32"):
            code, answer = self.fleet.ask("push", path(name))
            self.assertEqual((code, answer["result"]["code"]), (1, "refused"), answer)
            self.assertIn(word, answer["result"]["reason"])
        engine.ended.set()
        engine.thread.join()
        self.assertEqual((engine.greedy(), engine.link.version), (fresh(gguf("moe_a_BF16", "BF16")), None))

    def test_models_that_cannot_be_updated_are_refused(self):
        def refused(address, *words, **options):
            with self.assertRaises(wsync.Error) as caught:
                wsync.llama_cpp.attach(address, self.socket, "r0", **options)
            for word in words:
                self.assertIn(word, caught.exception.sentence)

        def loaded(file, **options):
            model = llama.Model(file, **options)
            self.addCleanup(model.free)
            return model.address

        class Without:
            """A library that lacks a symbol."""

            def __init__(self, library, symbol):
                self.library, self.symbol = library, symbol

            def __getattr__(self, name):
                return self[name]

            def __getitem__(self, name):
                if name == self.symbol:
                    raise AttributeError(f"undefined symbol: {name}")
                return self.library[name]

        real = ctypes.CDLL
        good = gguf("moe_a_BF16", "BF16")
        refused(loaded(good, load_mode=llama.MODE_MMAP), "is mapped from " + good, "LLAMA_LOAD_MODE_NONE")
        quantized = gguf("dense_a_F32", "Q4_0")
        refused(loaded(quantized), "blk.0.attn_q.weight has the type q4_0")
        refused(loaded(quantized, use_extra_bufts=True), "blk.0.attn_q.weight is in the buffer CPU_REPACK", "use_extra_bufts")
        plain = loaded(good)
        refused(plain, "architecture is qwen3moe", "qwen3", names="qwen3")
        permuted = llama.write(path("dense_a_F32"), path("llama.gguf"), "F32", "llama")
        refused(loaded(permuted), "architecture is llama", "rows of q and k")
        refused(plain, "libc.so.6 does not export _ZNK11llama_model10get_tensorEPKc", library="libc.so.6")
        for symbol in "ggml_get_data", "llama_model_size":
            with mock.patch("wsync._ggml.ctypes.CDLL", lambda name, without=symbol: Without(real(name), without)):
                refused(plain, f"does not export {symbol}, so")
        refused(0, "null pointer")
        refused(plain, "expected one of BF16, F16, F32", dtype="Q8_0")
        link = wsync.llama_cpp.attach(ctypes.c_void_p(plain), self.socket, "r0")
        link.close()

    def test_a_library_that_is_not_known(self):
        module = sys.modules.pop("xllamacpp.xllamacpp")
        try:
            with self.assertRaises(wsync.InvalidInput) as caught:
                wsync.llama_cpp.attach(1, self.socket, "r0")
        finally:
            sys.modules["xllamacpp.xllamacpp"] = module
        self.assertIn("import xllamacpp", caught.exception.sentence)


if __name__ == "__main__":
    unittest.main()
