"""Directories of published weights and the packages that define the form: safetensors, and transformers if it is there. Run by
tests/reference/run.sh; left out where torch is missing."""
import os
import shutil
import sys
import tempfile
import unittest

import wsync
import wsync.directory

try:
    import safetensors.torch
    import torch
    import wsync.torch
except ImportError:
    print("skip: this environment has no torch or no safetensors")
    sys.exit(77)
try:
    import transformers
except ImportError:
    transformers = None

KINDS = [torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
         torch.int32, torch.int8, torch.uint8, torch.bool]


class Reference(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="wsync-")
        self.addCleanup(shutil.rmtree, self.folder)

    def same(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, tensor in expected.items():
            self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertEqual(found[name].contiguous().reshape(-1).view(torch.uint8).tolist(),
                             tensor.contiguous().reshape(-1).view(torch.uint8).tolist(), name)

    def test_safetensors_loads_what_is_written(self):
        torch.manual_seed(1)
        weights = {str(kind): (torch.randn(7, 5) * 3).to(kind) for kind in KINDS}
        weights |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "strided": torch.randn(6, 4).t()}
        with wsync.directory.Writer(self.folder, shard_bytes=200) as writer:
            written = writer.publish(weights)
        files = [name for name in os.listdir(written.path) if name.endswith(".safetensors")]
        self.assertGreater(len(files), 3)
        found = {}
        for name in files:
            found |= safetensors.torch.load_file(os.path.join(written.path, name))
            with safetensors.safe_open(os.path.join(written.path, name), "pt") as file:
                self.assertEqual(file.metadata(), {"format": "pt", "wsync.version": "1.1", "wsync.digest": written.digest})
        self.same(found, weights)

    def test_what_safetensors_writes_is_read(self):
        weights = {"a": torch.randn(4, 3), "b": torch.randn(5).to(torch.bfloat16)}
        directory = os.path.join(self.folder, "weight_v000004")
        os.mkdir(directory)
        safetensors.torch.save_file(weights, os.path.join(directory, "model.safetensors"))
        read = wsync.directory.read(self.folder)
        self.assertFalse(read.proven)
        self.same({name: wsync.torch.as_tensor(array) for name, array in read.tensors.items()}, weights)

    @unittest.skipIf(transformers is None, "this environment has no transformers")
    def test_transformers_loads_a_directory_and_reads_back_the_same(self):
        torch.manual_seed(2)
        for tied in (False, True):
            config = transformers.Qwen3Config(
                vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, head_dim=16, tie_word_embeddings=tied)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            base = os.path.join(self.folder, f"base{tied}")
            model.save_pretrained(base)
            folder = os.path.join(self.folder, f"out{tied}")
            for shard_bytes in (5_000_000_000, 4096):
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(1)
                with wsync.directory.Writer(folder, model_files=base, shard_bytes=shard_bytes) as writer:
                    written = writer.publish(model.state_dict())
                loaded = transformers.AutoModelForCausalLM.from_pretrained(written.path, dtype="auto", local_files_only=True)
                self.same(loaded.state_dict(), model.state_dict())
                self.assertIsNotNone(transformers.AutoModel.from_pretrained(written.path, local_files_only=True))


if __name__ == "__main__":
    unittest.main()
