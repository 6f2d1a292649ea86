"""Tensors of torch. Run by tests/reference/run.sh, in an environment that has torch; it is left out where torch is missing."""
import collections
import gc
import os
import sys
import unittest
import unittest.mock
import weakref

import numpy as np
import wsync
from package_fleet import DEADLINE_S, PackageFleet
from wsync import _device_memory

try:
    import torch
    import wsync.torch
except ImportError:
    print("skip: this environment has no torch")
    sys.exit(77)

KINDS = [torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
         torch.int32, torch.int8, torch.uint8, torch.bool]


class Own(torch.Tensor):
    pass


class Torch(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        _, self.socket = self.fleet.sidecar()
        self.publisher = self.enterContext(self.fleet.publisher())

    def published(self, tensors, **options):
        return self.publisher.publish(tensors, **options).wait(timeout=DEADLINE_S)

    def test_tensors_whose_bytes_are_not_their_values_are_copied_and_others_are_not(self):
        base = torch.arange(24.0).reshape(4, 6)
        complex_ones = torch.complex(base, -base)
        weights = {"plain": base, "parameter": torch.nn.Parameter(base + 1), "transposed": base.T, "negative": torch._neg_view(base),
                   "conjugate": complex_ones.conj(), "complex": complex_ones}
        held = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in weights.items()}
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        for _ in range(2):  # the second time, the dtypes have been seen
            self.published(weights)
            for name, tensor in weights.items():
                self.assertTrue(torch.equal(held[name], tensor.detach().resolve_neg().resolve_conj()), name)
            base += 1

    def described_for(self, weights, **options):
        """Publishes, compares what arrives, and returns how often the tensors were described one by one."""
        calls = []
        describe_all = wsync._tensors.describe_all

        def counted(*arguments):
            calls.append(1)
            return describe_all(*arguments)

        with unittest.mock.patch.object(wsync._tensors, "describe_all", counted):
            self.published(weights, **options)
        for name, tensor in self.held.items():
            given = (weights.state_dict() if hasattr(weights, "state_dict") else dict(weights))[name]
            self.assertTrue(torch.equal(tensor, given.detach().to(tensor.dtype)), name)
        return len(calls)

    def test_the_same_tensors_are_described_once(self):
        weights = {"a": torch.randn(6, 4), "b": torch.nn.Parameter(torch.randn(5)), "empty": torch.zeros(0, 3),
                   "scalar": torch.tensor(2.0), "bytes": torch.arange(9, dtype=torch.uint8)}
        self.held = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        self.assertEqual(self.described_for(weights), 1)
        with torch.no_grad():
            weights["b"] += 1
        self.assertEqual(self.described_for(weights), 0)
        self.assertEqual(self.described_for({name: tensor.detach().clone() for name, tensor in weights.items()}), 0, "other memory")
        self.assertEqual(self.described_for(collections.OrderedDict(weights)), 0)
        self.assertEqual(self.described_for(list(weights.items())), 1, "what may be read only once is read by Python")
        self.assertEqual(self.described_for(weights), 0)
        for other in ({"a": torch._neg_view(weights["a"])}, {"a": torch.randn(4, 6).T}, {"b": torch.randn(10)[::2]},
                      {"a": weights["a"].as_subclass(Own)}):
            self.assertEqual(self.described_for(weights | other), 1, other)
            self.described_for(weights)
            self.assertEqual(self.described_for(weights), 0)
        turned = dict(reversed(weights.items()))
        self.assertEqual([self.described_for(turned), self.described_for(turned)], [1, 0])
        self.publisher.describe({"a": wsync.Spec("F32", (6, 4))})
        self.assertEqual(self.described_for(turned), 1, "there was another description")

    def test_tensors_that_no_longer_fit_are_seen(self):
        weights = {"a": torch.randn(6, 4), "b": torch.randn(5)}
        self.held = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        self.described_for(weights)
        for other, expected in (({"a": torch.randn(4, 6)}, "a"), ({"b": torch.randn(6)}, "b"), ({"b": torch.randn(5, dtype=torch.float64)}, "b"),
                                ({"c": torch.randn(1)}, "c"), ({"a": torch.randn(6, 4, device="meta")}, "a"), ({"a": 1}, "a")):
            with self.assertRaises(wsync.Error) as caught:
                self.published(weights | other)
            self.assertIn(expected, str(caught.exception))
        with self.assertRaises(wsync.Error):
            self.published({"a": weights["a"]})
        self.described_for(weights)
        self.assertEqual(self.described_for(weights), 0)

    def test_tied_names_are_followed(self):
        model = torch.nn.Module()
        model.embed, model.head = torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(4, 6, bias=False)
        model.head.weight = model.embed.weight
        self.held = {"embed.weight": torch.zeros(6, 4)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        self.assertEqual([self.described_for(model), self.described_for(model)], [1, 0])
        model.head.weight = torch.nn.Parameter(torch.randn(6, 4))
        with self.assertRaises(wsync.Error) as caught:  # a name that no engine has
            self.published(model)
        self.assertIn("head.weight", str(caught.exception))
        model.head.weight = model.embed.weight
        self.described_for(model)
        self.assertEqual(self.described_for(model), 0)

    def tied_model(self):
        model = torch.nn.Module()
        model.embed, model.head = torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(4, 6, bias=False)
        model.head.weight = model.embed.weight
        return model

    def test_a_tied_model_follows_a_tied_model(self):
        for tied in ("once", "every"):
            with self.subTest(tied), PackageFleet() as fleet, fleet.publisher() as publisher:
                _, socket = fleet.sidecar()
                mine, theirs = self.tied_model(), self.tied_model()
                fleet.serve(wsync.Replica(socket, "r0", mine.state_dict(), tied=tied))
                publisher.publish(theirs, tied=tied).wait(timeout=DEADLINE_S)
                self.assertTrue(torch.equal(mine.head.weight, theirs.head.weight))
        with self.assertRaisesRegex(wsync.InvalidInput, "tied is 'twice', expected 'every' or 'once'"):
            wsync.Replica(self.socket, "r9", mine.state_dict(), tied="twice")

    def test_a_tied_model_of_a_follower_refuses_what_is_not_tied(self):
        model = self.tied_model()
        follower = wsync.transformers.attach(model, self.socket, "r0")
        self.addCleanup(follower.close)
        weights = {"embed.weight": torch.randn(6, 4), "head.weight": torch.randn(6, 4)}
        both = dict.fromkeys(weights, weights["embed.weight"])
        self.published(both, tied="every")
        self.assertTrue(torch.equal(model.head.weight, both["head.weight"]))
        with self.assertRaises(wsync.Error) as caught:
            self.published(weights)
        self.assertIn("head.weight has other bytes than embed.weight, and the model has one parameter for both", str(caught.exception))
        self.assertTrue(torch.equal(model.head.weight, both["head.weight"]))  # the version before was loaded again

    def test_tied_names_are_found_in_the_first_publish_of_a_process(self):
        # Another thread of this process has described tensors before, so what it has learned is taken away.
        with unittest.mock.patch.object(wsync._tensors, "_TORCH_DTYPES", {}):
            weight = torch.randn(6, 4)
            self.held = {"embed": torch.zeros(6, 4), "norm": torch.zeros(3)}
            self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
            wsync._tensors._TORCH_DTYPES.clear()
            weights = {"embed": weight, "norm": torch.randn(3), "head": weight, "own": weight.as_subclass(Own)}
            self.assertEqual(self.described_for(weights), 1)

    def test_entries_that_are_replaced_meanwhile_stay_alive(self):
        weights = {f"w{i}": torch.full((1 << 16,), float(i)) for i in range(4)}
        self.held = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        self.published(weights)
        expected = {name: tensor.clone() for name, tensor in weights.items()}
        raw = self.publisher._raw

        class Replacing:
            def begin(self, step):  # as another thread may do, while the publisher waits here
                weights.clear()
                self.others = [torch.full((1 << 16,), -1.0) for _ in range(64)]
                return raw.begin(step)

            def __getattr__(self, name):
                return getattr(raw, name)

        with unittest.mock.patch.object(self.publisher, "_raw", Replacing()):
            publish = self.publisher.publish(weights)
        publish.wait(timeout=DEADLINE_S)
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(self.held[name], tensor), name)

    def test_a_publish_that_fails_leaves_nothing_of_its_addresses(self):
        one, two = torch.randn(6, 4), torch.randn(6, 4)
        self.held = {"a": torch.zeros(6, 4), "c": torch.zeros(3)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        self.described_for({"a": one, "b": one, "c": torch.zeros(3)})
        with self.assertRaises(wsync.InvalidInput):
            self.published({"a": two, "b": one, "c": "no tensor"})
        with self.assertRaises(wsync.Error) as caught:  # b is no other name of a any more, and no engine has it
            self.published({"a": two, "b": one, "c": torch.zeros(3)})
        self.assertIn("b (replica 'r0'", str(caught.exception))

    def test_the_order_of_an_ordered_dict_counts(self):
        weight = torch.randn(6, 4)
        weights = collections.OrderedDict(a=weight, b=weight)
        self.held = {"a": torch.zeros(6, 4)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        self.assertEqual([self.described_for(weights), self.described_for(weights)], [1, 0])
        weights.move_to_end("a")
        with self.assertRaises(wsync.Error) as caught:
            self.published(weights)  # as b, which comes first now
        self.assertIn("b", str(caught.exception))

    def test_another_dtype_that_is_asked_for_is_another_description(self):
        weights = {"a": torch.randn(6, 4)}
        self.held = {"a": torch.zeros(6, 4, dtype=torch.bfloat16)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", self.held))
        for dtype in ("BF16", torch.bfloat16, {"a": "BF16"}):
            self.assertEqual([self.described_for(weights, dtype=dtype), self.described_for(weights, dtype=dtype)], [1, 0])

    def test_each_dtype_goes_into_tensors_of_torch(self):
        torch.manual_seed(1)
        weights = {str(kind): (torch.randn(8, 6) * 3).to(kind) for kind in KINDS}
        held = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        layers = []
        self.fleet.serve(wsync.Replica(self.socket, "r0", held, load_layer=lambda version, layer, tensors: layers.append(tensors)))
        self.published(weights)
        for name, tensor in weights.items():
            self.assertTrue(torch.equal(held[name].view(torch.uint8), tensor.view(torch.uint8)), name)
        self.assertIs(layers[0][list(layers[0])[0]], held[list(layers[0])[0]])

    def test_an_engine_casts_as_torch_does(self):
        torch.manual_seed(2)
        values = torch.randn(64, 33) * 10.0 ** torch.randint(-9, 6, (64, 33))
        values.view(torch.int32)[::2] &= ~0x7FFF  # ties
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(256, 256)
        sources = {torch.float32: values, torch.bfloat16: every.view(torch.bfloat16), torch.float16: every.view(torch.float16)}
        names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
        weights, held, casts = {}, {}, {}
        for source, tensor in sources.items():
            for target in names:
                name = f"{names[source]} to {names[target]}"
                weights[name], held[name], casts[name] = tensor, torch.zeros(tensor.shape, dtype=target), source
        self.fleet.serve(wsync.Replica(self.socket, "r0", held, casts=casts))
        self.published(weights, tied="every")
        for name, tensor in weights.items():
            expected = tensor.to(held[name].dtype)
            number = ~expected.isnan()  # torch does not keep the sign and the payload of each NaN
            bits = torch.int32 if held[name].dtype == torch.float32 else torch.int16
            self.assertTrue(torch.equal(held[name][number].view(bits), expected[number].view(bits)), name)
            self.assertTrue(held[name][~number].isnan().all(), name)

    def test_dtypes_of_torch_are_names_of_dtypes(self):
        for kind in KINDS:
            self.assertEqual(wsync.Spec(kind, (2,)).dtype, wsync.Spec(str(kind), (2,)).dtype)
        held = {"a": torch.zeros(4, dtype=torch.bfloat16)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        weights = {"a": torch.tensor([1.0, 2.5, -3.0, 4.0])}
        self.published(weights, dtype=torch.bfloat16)
        self.assertTrue(torch.equal(held["a"].float(), weights["a"]))
        with self.assertRaises(wsync.InvalidInput):
            self.published(weights, dtype=torch.complex128)

    def test_a_module_with_tied_weights_and_gradients(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = torch.nn.Embedding(32, 16)
                self.norm = torch.nn.LayerNorm(16)
                self.head = torch.nn.Linear(16, 32, bias=False)
                self.head.weight = self.embed.weight
        model, engine = Model(), Model()
        self.fleet.serve(wsync.Replica(self.socket, "r0", {name: parameter.data for name, parameter in engine.named_parameters()}))
        self.published(model)
        for (name, parameter), other in zip(model.named_parameters(), engine.parameters()):
            self.assertTrue(torch.equal(parameter, other), name)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model.head(model.norm(model.embed(torch.arange(8)))).square().sum().backward()
        optimizer.step()
        self.published(dict(model.named_parameters()))
        self.assertTrue(torch.equal(model.head.weight, engine.head.weight))

    def test_workers_of_a_data_loader(self):
        """They are forked while a version travels, live on during the next one, and cannot publish."""
        held = {"a": torch.zeros(64, 16)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        publisher = self.publisher

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 6

            def __getitem__(self, index):
                try:
                    publisher.check()
                except wsync.InvalidInput as failure:
                    said = f"this wsync.Publisher was made in process {os.getppid()}, and the calling process {os.getpid()} has been "
                    return index if failure.sentence.startswith(said + "forked from it, as workers of a DataLoader") else -2
                return -1

        loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
        for step in 1, 2:
            publish = publisher.publish({"a": torch.full((64, 16), float(step))}, step=step)
            self.assertEqual([batch.tolist() for batch in loader], [[0, 1], [2, 3], [4, 5]])
            publish.wait(timeout=DEADLINE_S)
            self.assertTrue(torch.equal(held["a"], torch.full((64, 16), float(step))))

    def test_views_and_casts(self):
        base = torch.randn(12, 20)
        weights = {"transposed": base.t(), "strided": base[::2, 3:17:5], "expanded": base[:1].expand(5, 20)}
        held = {name: torch.zeros(tensor.shape, dtype=torch.bfloat16) for name, tensor in weights.items()}
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        self.published(weights, dtype="BF16")
        for name, tensor in weights.items():
            self.assertTrue(torch.equal(held[name], tensor.to(torch.bfloat16)), name)

    def test_arrays_of_wsync_as_tensors(self):
        weights = {"a": torch.randn(16, 4).to(torch.bfloat16), "b": torch.randn(16, 4).to(torch.float8_e4m3fn), "c": torch.randn(5)}
        found = {}
        specs = {"a": wsync.Spec("BF16", (16, 4)), "b": wsync.Spec("F8_E4M3", (16, 4)), "c": wsync.Spec("F32", (5,))}

        def load_layer(version, layer, tensors):
            found.update({name: wsync.torch.as_tensor(array) for name, array in tensors.items()})
        for take in ("adopt", "whole"):
            found.clear()
            replica = wsync.Replica(self.socket, take, specs, take=take, load_layer=load_layer)
            served = self.fleet.serve(replica)
            self.published(weights)
            for name, tensor in weights.items():
                self.assertEqual(found[name].dtype, tensor.dtype)
                self.assertTrue(torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name)
            self.fleet.served.remove(served)
            served.stop()
        view = wsync.as_dtype(np.zeros((2, 2), np.uint16), "BF16")
        wsync.torch.as_tensor(view)[0, 0] = 1
        self.assertEqual(view[0, 0], 0x3F80)

    def test_the_memory_of_a_version_as_a_tensor(self):
        held = {"a": torch.zeros(16, 4, dtype=torch.bfloat16)}
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        self.publisher.describe(held)
        weights = torch.randn(16, 4)
        with self.publisher.version() as version:
            memory = wsync.torch.as_tensor(version.tensor("a"))
            memory.copy_(weights)
        version.publish.wait(timeout=DEADLINE_S)
        self.assertTrue(torch.equal(held["a"], weights.to(torch.bfloat16)))
        self.assertEqual(memory.abs().max(), 0)

    def test_a_tensor_inside_of_a_transform_of_torch_func_is_named(self):
        weights = {"plain": torch.ones(3), "mapped": torch.ones(4, 3)}

        def inside(mapped):
            for tensors in ({"plain": weights["plain"], "mapped": mapped}, {"mapped": mapped.t()}, {"mapped": mapped * 2}):
                with self.assertRaises(wsync.InvalidInput) as caught:
                    self.publisher.publish(tensors)
                self.assertEqual(caught.exception.tensor, "mapped")
                self.assertIn("tensor mapped was made inside of a transform of torch.func (such as vmap or grad): it is a functorch "
                              "wrapper of another tensor and has no memory of its own. Return it", caught.exception.sentence)
                with self.assertRaises(wsync.InvalidInput) as caught, self.publisher.version() as version:
                    version.put("mapped", mapped)
                self.assertIn("functorch wrapper", caught.exception.sentence)
            with self.assertRaises(wsync.InvalidInput) as caught:
                wsync.Replica(self.socket, "r1", {"mapped": mapped})
            self.assertIn("functorch wrapper", caught.exception.sentence)
            return mapped.sum()
        self.assertTrue(torch.equal(torch.func.vmap(inside)(torch.ones(4, 3, 2)), torch.full((4,), 6.0)))
        torch.func.grad(inside)(torch.ones(4, 3))
        self.publisher.publish(weights, step=1)  # after another publish of the same names
        torch.func.vmap(lambda mapped: self.assertRaises(wsync.InvalidInput, self.publisher.publish,
                                                         weights | {"mapped": mapped}) or mapped)(torch.ones(2, 4, 3))
        self.publisher.publish(weights, step=2)

    def test_a_view_on_a_gpu_whose_values_are_not_its_bytes_says_how_to_resolve_it(self):
        complex_one = torch.randn(4, dtype=torch.complex64)
        for view, kind, advice in ((complex_one.conj(), "conjugated", ".resolve_conj()"),
                                   (complex_one.conj().imag, "negated", ".resolve_neg()")):
            with self.assertRaises(wsync.InvalidInput) as caught:
                _device_memory._of_torch(torch, view)
            self.assertTrue(caught.exception.args[0].endswith(f"is a {kind} view, whose values are not what is in its memory; give "
                                                              f"tensor{advice}"), caught.exception)

    def test_what_cannot_be_published(self):
        for tensor, word in ((torch.zeros(2, device="meta"), "meta"), (torch.eye(3).to_sparse(), "sparse"),
                             (torch.zeros(2, dtype=torch.complex128), "complex128")):
            with self.assertRaises(wsync.InvalidInput) as caught:
                self.publisher.publish({"x": tensor})
            self.assertEqual(caught.exception.tensor, "x")
            self.assertIn(word, caught.exception.sentence)



class Destinations(unittest.TestCase):
    """Memory of torch into which the library writes."""

    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        _, self.socket = self.fleet.sidecar()

    def watched(self, values):
        """A parameter, and a weak reference to what goes when its memory is freed."""
        array = np.array(values, np.float32)
        return torch.nn.Parameter(torch.from_numpy(array)), weakref.ref(array)

    def test_memory_that_a_tensor_lets_go_lives_as_long_as_the_library_writes_there(self):
        for let_go in lambda module: setattr(module.weight, "data", module.weight.data.clone()), torch.nn.Module.double:
            module = torch.nn.Linear(4, 1, bias=False)
            module.weight, memory = self.watched([[0, 0, 0, 0]])
            with wsync.Replica(self.socket, "r0", dict(module.named_parameters())):
                let_go(module)
                gc.collect()
                self.assertIsNotNone(memory())
            gc.collect()
            self.assertIsNone(memory(), "nothing of the replica is left")

    def test_memory_is_let_go_when_it_is_given_away(self):
        kept, kept_memory = self.watched([1, 2])
        moved, moved_memory = self.watched([3, 4])
        replica = wsync.Replica(self.socket, "r0", {"kept": kept, "moved": wsync.Shard(moved, (2,), [(0, 0, 2)])})
        self.fleet.serve(replica)
        with self.fleet.publisher() as publisher:
            publisher.publish({"kept": torch.tensor([5.0, 6]), "moved": torch.arange(2.0)}).wait(timeout=DEADLINE_S)
            self.assertEqual((kept.tolist(), moved.tolist()), ([5, 6], [0, 1]))
            moved.data = torch.zeros(2)
            gc.collect()
            self.assertIsNotNone(moved_memory())
            replica.suspend()
            gc.collect()
            self.assertIsNone(moved_memory())
            self.assertIsNotNone(kept_memory())
            with self.assertRaisesRegex(wsync.InvalidInput, "tensor moved has other memory than before .*: give it to resume") as caught:
                replica.resume()
            self.assertEqual(caught.exception.tensor, "moved")
            replica.resume({"moved": wsync.Shard(moved, (2,), [(0, 0, 2)])})
            publisher.publish({"kept": torch.tensor([7.0, 8]), "moved": torch.arange(2.0) + 4}).wait(timeout=DEADLINE_S)
            self.assertEqual((kept.tolist(), moved.tolist()), ([7, 8], [4, 5]))
            moved.data = torch.zeros(2)  # and the memory that it has got is kept as well
            publisher.publish({"kept": torch.tensor([1.0, 2]), "moved": torch.arange(2.0)}).wait(timeout=DEADLINE_S)
            self.assertEqual((kept.tolist(), moved.tolist()), ([1, 2], [0, 0]))

    def test_memory_of_a_resume_that_was_refused_is_not_what_the_library_writes_to(self):
        held, memory = self.watched([1, 2])
        replica = wsync.Replica(self.socket, "r0", {"held": held})
        self.fleet.serve(replica)
        other = torch.zeros(2)
        self.assertRaisesRegex(wsync.EngineRefused, "not suspended", replica.resume, {"held": other})
        with self.fleet.publisher() as publisher:
            publisher.publish({"held": torch.tensor([5.0, 6])}).wait(timeout=DEADLINE_S)
        self.assertEqual((held.tolist(), other.tolist()), ([5, 6], [0, 0]))
        held.data = other
        gc.collect()
        self.assertIsNotNone(memory())

    def test_a_view_whose_values_are_not_its_bytes_is_refused(self):
        base = torch.zeros(4)
        for view in (torch._neg_view(base), torch.complex(base, base).conj().imag):
            with self.assertRaisesRegex(wsync.InvalidInput, r"tensor held is a conjugated or negated view.*resolve_neg\(\)") as caught:
                wsync.Replica(self.socket, "r0", {"held": view})
            self.assertEqual(caught.exception.tensor, "held")


if __name__ == "__main__":
    unittest.main()
