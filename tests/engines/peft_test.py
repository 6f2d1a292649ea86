"""Adapters of PEFT that are merged into what is published."""
import copy
import os
import sys
import tempfile
import unittest

import peft
import torch

import models
import wsync
import wsync.torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from package_fleet import DEADLINE_S, PackageFleet  # noqa: E402


class Merged(unittest.TestCase):
    def published(self, model):
        """What arrives at an engine that takes any names."""
        with PackageFleet() as fleet:
            _, socket = fleet.sidecar()
            found = {}

            def load_layer(version, layer, tensors):
                found.update({name: wsync.torch.as_tensor(array).clone() for name, array in tensors.items()})
            fleet.serve(wsync.Replica(socket, "r0", take="borrow", load_layer=load_layer))
            with fleet.publisher() as publisher:
                with publisher.version() as version:
                    for name, tensor in wsync.torch.merged(model):
                        version.put(name, tensor)
                version.publish.wait(timeout=DEADLINE_S)
            return found

    def test_merged_weights_arrive_and_the_models_bits_stay(self):
        with tempfile.TemporaryDirectory() as work:
            for shape, make in ("dense", models.dense), ("moe", models.mixture):
                models.save(os.path.join(work, shape), make, 3)
            linear = {"r": 4, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
            experts = {"r": 2, "target_modules": ["v_proj"], "init_lora_weights": False,
                       "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
            for shape, options in (("dense", linear), ("dense", linear | {"use_dora": True}),
                                   ("dense", linear | {"modules_to_save": ["up_proj", "model.norm"]}), ("moe", experts)):
                with self.subTest(shape, **options):
                    base = models.loaded(os.path.join(work, shape))
                    names = {name for name, _ in base.named_parameters()}  # the tied head once
                    model = peft.get_peft_model(base, peft.LoraConfig(**options))
                    with torch.no_grad():
                        for name, parameter in model.named_parameters():
                            if "modules_to_save" in name:
                                parameter.add_(0.5)
                    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
                    expected = dict(copy.deepcopy(model).merge_and_unload().named_parameters())
                    found = self.published(model)
                    self.assertEqual(set(found), names)
                    for name, tensor in found.items():
                        self.assertTrue(torch.equal(tensor, expected[name]), name)
                    for name, tensor in model.state_dict().items():
                        self.assertTrue(torch.equal(tensor, before[name]), name)
                    self.assertEqual([tensor.data_ptr() for tensor in model.state_dict().values()], addresses)
                    adapted = f"model.layers.0.self_attn.{options['target_modules'][0]}"
                    own = before[f"base_model.model.{adapted}.base_layer.weight"]
                    self.assertFalse(torch.equal(found[f"{adapted}.weight"], own))

    def test_a_model_without_adapters(self):
        module = torch.nn.Linear(3, 2)
        self.assertEqual([name for name, _ in wsync.torch.merged(module)], ["weight", "bias"])

    def test_only_tied_weights_are_left_out(self):
        model = torch.nn.Module()
        model.layer = torch.nn.Linear(4, 4, bias=False)
        for name, tensor in (("whole", torch.randn(4, 4)), ("empty", torch.empty(0, 3)), ("other", torch.empty(0, 5))):
            model.register_parameter(name, torch.nn.Parameter(tensor))
        model.row, model.turned = torch.nn.Parameter(model.whole.data[0]), torch.nn.Parameter(model.whole.data.T)
        model.tied = model.whole
        model.config, model.forward = {"model_type": "other"}, model.layer.forward
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["layer"], r=2))
        self.assertEqual({name for name, _ in wsync.torch.merged(adapted)},
                         {"layer.weight", "whole", "empty", "other", "row", "turned"})


if __name__ == "__main__":
    unittest.main()
