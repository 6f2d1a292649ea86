"""Plans of where a model's loader puts a checkpoint. Run by tests/reference/run.sh, in an environment that has torch; it is left
out where torch is missing."""
import sys
import unittest

import wsync
from package_fleet import DEADLINE_S, PackageFleet, until

try:
    import torch
    import wsync.torch
except ImportError:
    print("skip: this environment has no torch")
    sys.exit(77)

HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERTS, LAYERS = 64, 8, 4, 16, 96, 4, 2


def checkpoint(seed, dtype=torch.bfloat16):
    """A checkpoint with the names of transformers."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(dtype)
    tensors = {"model.embed_tokens.weight": random(100, HIDDEN), "model.norm.weight": random(HIDDEN)}
    for layer in range(LAYERS):
        begin = f"model.layers.{layer}."
        tensors |= {f"{begin}self_attn.q_proj.weight": random(HEADS * HEAD, HIDDEN),
                    f"{begin}self_attn.k_proj.weight": random(KV_HEADS * HEAD, HIDDEN),
                    f"{begin}self_attn.v_proj.weight": random(KV_HEADS * HEAD, HIDDEN),
                    f"{begin}self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD),
                    f"{begin}input_layernorm.weight": random(HIDDEN)}
        for expert in range(EXPERTS):
            tensors |= {f"{begin}mlp.experts.{expert}.{name}.weight": random(*shape)
                        for name, shape in (("gate_proj", (FFN, HIDDEN)), ("up_proj", (FFN, HIDDEN)), ("down_proj", (HIDDEN, FFN)))}
    return tensors


class Model(torch.nn.Module):
    """Fused and sharded parameters, and a loader, of the kind that vLLM's models have."""

    def __init__(self, rank, ranks):
        super().__init__()
        self.rank, self.ranks = rank, ranks
        shapes = {"embed": (100, HIDDEN), "norm": (HIDDEN,)}
        for layer in range(LAYERS):
            shapes |= {f"{layer}_qkv": ((HEADS + 2 * KV_HEADS) * HEAD // ranks, HIDDEN),
                       f"{layer}_o": (HIDDEN, HEADS * HEAD // ranks),
                       f"{layer}_norm": (HIDDEN,), f"{layer}_w13": (EXPERTS, 2 * FFN // ranks, HIDDEN),
                       f"{layer}_w2": (EXPERTS, HIDDEN, FFN // ranks)}
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False))

    def own(self, tensor, dim):
        size = tensor.shape[dim] // self.ranks
        return tensor.narrow(dim, self.rank * size, size)

    def load_weights(self, weights):
        heads = {"q_proj": (0, HEADS), "k_proj": (HEADS, KV_HEADS), "v_proj": (HEADS + KV_HEADS, KV_HEADS)}
        for name, tensor in weights:
            words = name.split(".")
            layer = words[2] if words[1] == "layers" else ""
            if name == "model.embed_tokens.weight":
                self.embed.data.copy_(tensor)
            elif name == "model.norm.weight":
                self.norm.data.copy_(tensor)
            elif words[-2] == "input_layernorm":
                getattr(self, f"{layer}_norm").data.copy_(tensor)
            elif words[-2] in heads:
                begin, count = (number * HEAD // self.ranks for number in heads[words[-2]])
                getattr(self, f"{layer}_qkv").data.narrow(0, begin, count).copy_(self.own(tensor, 0))
            elif words[-2] == "o_proj":
                getattr(self, f"{layer}_o").data.copy_(self.own(tensor, 1))
            elif words[-2] == "down_proj":
                getattr(self, f"{layer}_w2").data[int(words[5])].copy_(self.own(tensor, 1))
            else:
                half = FFN // self.ranks
                begin = 0 if words[-2] == "gate_proj" else half
                getattr(self, f"{layer}_w13").data[int(words[5])].narrow(0, begin, half).copy_(self.own(tensor, 0))


class Converting(Model):
    """What is not only copied: a norm of which 1 is taken, a transpose, an embedding in float32."""

    def __init__(self):
        super().__init__(0, 1)
        self.embed = torch.nn.Parameter(torch.zeros(100, HIDDEN), requires_grad=False)
        self.transposed = torch.nn.Parameter(torch.zeros(HEADS * HEAD, HIDDEN, dtype=torch.bfloat16), requires_grad=False)
        self.calls = 0

    def load_weights(self, weights):
        weights = dict(weights)
        self.calls += 1
        super().load_weights(weights.items())
        if "model.norm.weight" in weights:
            self.norm.data.sub_(1)
        if "model.layers.0.self_attn.o_proj.weight" in weights:
            self.transposed.data.copy_(weights["model.layers.0.self_attn.o_proj.weight"].t())


def fresh(model, tensors):
    model.load_weights(tensors.items())
    return model


def equal(case, held, expected):
    for (name, parameter), other in zip(held.named_parameters(), expected.parameters()):
        case.assertTrue(torch.equal(parameter, other), name)


class Recording(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        _, self.socket = self.fleet.sidecar()
        self.publisher = self.enterContext(self.fleet.publisher())

    def test_fused_and_sharded_parameters_on_two_ranks(self):
        specs = {name: wsync.Spec("BF16", tuple(tensor.shape)) for name, tensor in checkpoint(0).items()}
        models = [Model(rank, 2) for rank in range(2)]
        plans = [wsync.torch.record(model, model.load_weights, specs) for model in models]
        for plan in plans:
            self.assertEqual((plan.loaded, plan.unused), ({}, []))
            self.assertEqual(list(plan.pieces), list(specs))
        shard = plans[1].pieces["model.layers.1.mlp.experts.2.down_proj.weight"]
        self.assertEqual((shard.shape, [tuple(one) for one in shard.ranges]), ((HIDDEN, FFN), [(1, FFN // 2, FFN // 2)]))
        paused = []
        replicas = [plan.attach(self.socket, "r0", rank=rank, world_size=2, leader=rank == 0, serving=True,
                                **({"pause": paused.append} if rank == 0 else {})) for rank, plan in enumerate(plans)]
        for replica in replicas:
            self.fleet.serve(replica)
        for model in models:
            model.load_weights = None  # nobody calls it
        for seed in (1, 2):
            paused.clear()
            publish = self.publisher.publish(checkpoint(seed))
            until(lambda: paused or publish.status().state >= wsync.PublishState.COMMITTED, "the pause")
            for replica in replicas:
                replica.paused(seed)
            publish.wait("committed", DEADLINE_S)
            replicas[1].running(seed)
            for rank, model in enumerate(models):
                equal(self, model, fresh(Model(rank, 2), checkpoint(seed)))
        self.assertEqual([(replica.loaded_by_python, str(replica.version)) for replica in replicas], [(0, "1.2")] * 2)

    def test_what_is_computed_is_loaded_by_python(self):
        model = Converting()
        plan = wsync.torch.record(model, model.load_weights, checkpoint(0))
        self.assertEqual(set(plan.loaded), {"model.norm.weight", "model.embed_tokens.weight",
                                            "model.layers.0.self_attn.o_proj.weight"})
        self.assertEqual(plan.loaded["model.embed_tokens.weight"], "it is converted from torch.bfloat16 to torch.float32")
        self.assertIn("aten.sub_", plan.loaded["model.norm.weight"])
        self.assertIn("copied into 2 parameters", plan.loaded["model.layers.0.self_attn.o_proj.weight"])
        self.assertEqual(len(plan.pieces), len(plan.specs) - 3)
        equal(self, model, fresh(Converting(), checkpoint(0)))  # recording has loaded it
        replica = plan.attach(self.socket, "r0")
        self.fleet.serve(replica)
        for seed in (1, 2):
            self.publisher.publish(checkpoint(seed)).wait(timeout=DEADLINE_S)
            equal(self, model, fresh(Converting(), checkpoint(seed)))
        self.assertEqual(replica.loaded_by_python, 2 * 3)

    def test_its_version_is_only_what_the_model_has(self):
        model = Converting()
        plan = wsync.torch.record(model, model.load_weights, checkpoint(0))
        replica = plan.attach(self.socket, "r0")
        self.fleet.serve(replica)
        first = self.publisher.publish(checkpoint(1)).wait(timeout=DEADLINE_S).version
        self.assertEqual(replica.version, first)
        load, broken, failed = plan.load, [True], []

        def fail(items):
            if broken:
                failed.append(replica.version)
                raise ValueError("half-way")
            load(items)
        plan.load = fail
        publish = self.publisher.publish(checkpoint(2))
        until(lambda: failed, "the failure")
        until(lambda: "half-way" in (replica.error or ""), "the end of the callback")
        self.assertEqual((failed[0], replica.version), (None, None))
        broken.clear()
        until(lambda: replica.version is not None, "a version again")
        until(lambda: replica.version == publish.status().version, "the newest version")
        equal(self, model, fresh(Converting(), checkpoint(2)))
        replica.suspend()
        self.assertIsNone(replica.version)
        replica.resume()
        until(lambda: replica.version == publish.status().version, "the version again")

    def test_copies_through_other_memory_are_followed(self):
        """Concatenated, stacked, cloned and then copied in parts."""
        class Target(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fused = torch.nn.Parameter(torch.zeros(3, 24, 8), requires_grad=False)
                self.assigned = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

        def load(items):
            tensors = dict(items)
            gate, up = (torch.stack([tensors[f"{number}.{name}"] for number in range(3)]) for name in ("gate", "up"))
            both = torch.cat([gate, up], dim=1).clone()
            target.fused.data[:, :10].copy_(both[:, :10])
            target.fused.data[:, 10:] = both[:, 10:]
            target.assigned = torch.nn.Parameter(tensors["assigned"].reshape(6, 4).contiguous(), requires_grad=False)
        target = Target()
        specs = {f"{number}.{name}": wsync.Spec("F32", (12, 8)) for number in range(3) for name in ("gate", "up")}
        specs |= {"assigned": wsync.Spec("F32", (4, 6)), "of another rank": wsync.Spec("F32", (2,))}
        plan = wsync.torch.record(target, load, specs)
        self.assertEqual((plan.loaded, plan.unused), ({}, ["of another rank"]))
        weights = {name: torch.randn(spec.shape) for name, spec in specs.items()}
        self.fleet.serve(plan.attach(self.socket, "r0"))
        self.publisher.publish(weights).wait(timeout=DEADLINE_S)
        for number in range(3):
            self.assertTrue(torch.equal(target.fused[number, :12], weights[f"{number}.gate"]))
            self.assertTrue(torch.equal(target.fused[number, 12:], weights[f"{number}.up"]))
        self.assertTrue(torch.equal(target.assigned.reshape(4, 6), weights["assigned"]))

    def test_parts_of_one_tensor(self):
        """Two ranges of a fused tensor, as a rank of a tensor-parallel engine takes them of transformers' gate_up_proj."""
        def plan_of(copy, shape=(4, 16, 8), target=(4, 8, 8)):
            model = torch.nn.Module()
            model.p = torch.nn.Parameter(torch.zeros(target), requires_grad=False)
            return wsync.torch.record(model, lambda items: [copy(model.p.data, tensor) for _, tensor in items],
                                      {"x": wsync.Spec("F32", shape)})

        def halves(parameter, tensor):
            parameter[:, :4].copy_(tensor[:, 4:8])
            parameter[:, 4:].copy_(tensor[:, 12:16])
        self.assertEqual([tuple(one) for one in plan_of(halves).pieces["x"].ranges], [(1, 4, 4), (1, 12, 4)])

        def swapped(parameter, tensor):
            parameter[:, :4].copy_(tensor[:, 12:16])
            parameter[:, 4:].copy_(tensor[:, 4:8])
        self.assertIn("another order", plan_of(swapped).loaded["x"])
        self.assertIn("repeated", plan_of(lambda parameter, tensor: parameter.copy_(tensor[0, 0]), target=(16, 8)).loaded["x"])
        self.assertIn("another order", plan_of(lambda parameter, tensor: parameter.copy_(tensor.t()), (8, 16), (16, 8)).loaded["x"])
        self.assertEqual(list(plan_of(lambda parameter, tensor: parameter.copy_(tensor.view(-1)[:64].view(8, 8)), (16, 8),
                                      (8, 8)).pieces["x"].ranges), [(0, 0, 8)])
        self.assertIn("computes", plan_of(lambda parameter, tensor: parameter.copy_(tensor * 2), (8, 8), (8, 8)).loaded["x"])

        def behind(parameter, tensor):
            parameter.copy_(tensor)
            parameter.numpy()[0, 0] += 1  # torch does not know
        self.assertIn("bytes in the model are not", plan_of(behind, (8, 8), (8, 8)).loaded["x"])

    def loading(self, tied):
        """A model with two parameters, or one that has two names, whose loader ignores other names."""
        model = torch.nn.Module()
        model.emb = torch.nn.Parameter(torch.zeros(64, 32), requires_grad=False)
        model.head = model.emb if tied else torch.nn.Parameter(torch.zeros(64, 32), requires_grad=False)

        def load(items):
            for name, tensor in items:
                if hasattr(model, name):
                    getattr(model, name).data.copy_(tensor)
        return model, load

    def published(self, plan, weights, **options):
        replica = plan.attach(self.socket, "r0")
        self.fleet.serve(replica)
        self.publisher.publish(weights, **options).wait(timeout=DEADLINE_S)
        return replica

    def test_what_the_loader_ignores_is_received_and_dropped(self):
        def checkpoint_of():
            return {"emb": torch.randn(64, 32), "inv_freq": torch.randn(4), "head": torch.randn(64, 32), "empty": torch.empty(0)}
        model, load = self.loading(False)
        plan = wsync.torch.record(model, load, checkpoint_of())
        self.assertEqual((list(plan.pieces), plan.loaded, plan.unused), (["emb", "head"], {}, ["inv_freq", "empty"]))
        with self.assertRaises(wsync.InvalidInput) as caught:
            plan.attach(self.socket, "r0", dropped=["emb"])
        self.assertEqual(caught.exception.tensor, "emb")
        with self.assertRaisesRegex(wsync.InvalidInput, "commit cannot be given"):
            plan.attach(self.socket, "r0", commit=lambda version: None)
        weights = checkpoint_of()
        replica = self.published(plan, weights)
        self.assertTrue(torch.equal(model.emb, weights["emb"]))
        self.assertTrue(torch.equal(model.head, weights["head"]))
        self.assertEqual(replica.loaded_by_python, 0)

    def test_one_rank_drops_what_no_rank_loads(self):
        """Two ranks of one parameter each; only rank 0 has memory for what neither of them loads."""
        models, plans = [], []
        for own in "ab":
            model = torch.nn.Module()
            model.p = torch.nn.Parameter(torch.zeros(16, 8), requires_grad=False)
            specs = {"a": wsync.Spec("F32", (16, 8)), "b": wsync.Spec("F32", (16, 8)), "ignored": wsync.Spec("F32", (3,))}
            plans.append(wsync.torch.record(model, lambda items, p=model.p, own=own: p.copy_(dict(items)[own]), specs))
            models.append(model)
        both = sorted(set(plans[0].unused) & set(plans[1].unused))
        self.assertEqual((plans[0].unused, plans[1].unused, both), (["b", "ignored"], ["a", "ignored"], ["ignored"]))
        for rank, options in enumerate(({"dropped": both}, {})):
            self.fleet.serve(plans[rank].attach(self.socket, "r0", rank=rank, world_size=2, leader=rank == 0, **options))
        weights = {name: torch.randn(spec.shape) for name, spec in specs.items()}
        self.publisher.publish(weights).wait("committed", DEADLINE_S)
        for model, own in zip(models, "ab"):
            self.assertTrue(torch.equal(model.p, weights[own]), own)

    def test_two_names_of_one_memory(self):
        """A state dict of tied weights: of a model that ties them, and of one that does not."""
        for tied in True, False:
            for how in "once", "every":
                with self.subTest(tied=tied, how=how), PackageFleet() as fleet:
                    self.fleet, (_, self.socket) = fleet, fleet.sidecar()
                    model, load = self.loading(tied)
                    one = torch.randn(64, 32)
                    plan = wsync.torch.record(model, load, {"emb": one, "head": one}, tied=how)
                    self.assertEqual(plan.tied, {"emb": ["head"]} if how == "once" else {})
                    with fleet.publisher() as self.publisher:
                        one = torch.randn(64, 32)
                        replica = self.published(plan, {"emb": one, "head": one}, tied=how)
                        self.assertTrue(torch.equal(model.emb, one))
                        self.assertTrue(torch.equal(model.head, one))
                    # Of one name a copy goes to two parameters; otherwise nothing goes through Python.
                    self.assertEqual(replica.loaded_by_python, 1 if how == "once" and not tied else 0)
        self.assertRaises(wsync.InvalidInput, wsync.torch.record, model, load, {}, tied="twice")

    def test_tensors_that_overlap(self):
        model, load = self.loading(False)
        memory = torch.randn(96, 32)
        plan = wsync.torch.record(model, load, {"emb": memory[:64], "head": memory[32:]})
        self.assertEqual((list(plan.pieces), plan.loaded, plan.unused, plan.tied), (["emb", "head"], {}, [], {}))
        memory = torch.randn(96, 32)
        self.published(plan, {"emb": memory[:64], "head": memory[32:]})
        self.assertTrue(torch.equal(model.emb, memory[:64]))
        self.assertTrue(torch.equal(model.head, memory[32:]))

    def test_a_parameter_that_is_half_loaded_by_a_copy_into_its_neighbour(self):
        def record(begin, end):
            model, flat = torch.nn.Module(), torch.zeros(16)
            model.a = torch.nn.Parameter(flat[:8], requires_grad=False)
            model.b = torch.nn.Parameter(flat[4:12], requires_grad=False)
            model.rows = torch.nn.Parameter(flat.view(2, 8)[:, 1:5], requires_grad=False)  # 1 to 5, and 9 to 13
            return wsync.torch.record(model, lambda items: [flat[begin:end].copy_(tensor) for _, tensor in items],
                                      {"x": wsync.Spec("F32", (end - begin,))})
        for (begin, end), reason in (((0, 8), "b: 16 of its 32"), ((2, 16), "a: 24 of its 32"), ((0, 12), "rows: 28 of its 32")):
            with self.assertRaises(wsync.Refused) as caught:
                record(begin, end)
            self.assertIn(f"parameter {reason} bytes come from the checkpoint", caught.exception.sentence)
        self.assertEqual(list(record(0, 13).pieces), ["x"])

    def test_a_parameter_that_is_not_loaded(self):
        model = torch.nn.Linear(4, 4)
        with self.assertRaises(wsync.Refused) as caught:
            wsync.torch.record(model, lambda items: model.weight.data.copy_(dict(items)["weight"]),
                               {"weight": wsync.Spec("F32", (4, 4)), "bias": wsync.Spec("F32", (4,))})
        self.assertIn("parameter bias: 0 of its 16 bytes", caught.exception.sentence)
        with self.assertRaises(wsync.InvalidInput):
            wsync.torch.record(None, lambda items: None, {})

        def make(items):
            made = torch.nn.Linear(4, 4, bias=False)
            made.weight.data.copy_(dict(items)["weight"] * 2)
            return made
        with self.assertRaises(wsync.Refused) as caught:
            wsync.torch.record(None, make, {"weight": wsync.Spec("F32", (4, 4))})
        self.assertIn("weight: aten.mul.Tensor computes with it", caught.exception.sentence)


if __name__ == "__main__":
    unittest.main()
