"""The engines of gpu_test.py: models of torch whose weights follow a trainer. They compute without waiting for the GPU, so that
steps are under way when a pause comes.

Usage: gpu_engine.py WHAT SOCKET DEVICE FOLDER [BYTES]
    WHAT: net, plan, casts, large or transformers; DEVICE: of torch; FOLDER: where results are written; BYTES: of "large"

After the first step with another version it prints a line of JSON: the version, the steps that were computed with the one before,
how many of these differ from the first of them, and the file with its own result.
"""
import json
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import wsync  # noqa: E402
import wsync.torch  # noqa: E402

LARGE_TENSORS = 8


class Net(torch.nn.Module):
    """A few layers in two dtypes: 50 MB."""

    def __init__(self, width=1024, layers=4):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, 2 * width), torch.nn.GELU(),
                                torch.nn.Linear(2 * width, width)).to(torch.bfloat16) for _ in range(layers))
        self.head = torch.nn.Linear(width, 256)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.float())


class Fused(torch.nn.Module):
    """A model whose loader puts two tensors of a checkpoint into one parameter, and computes a third."""

    def __init__(self):
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(512, 256, dtype=torch.bfloat16), requires_grad=False)
        self.doubled = torch.nn.Parameter(torch.zeros(64, dtype=torch.bfloat16), requires_grad=False)

    def load_weights(self, items):
        for name, tensor in items:
            if name == "scale":
                self.doubled.data.copy_(tensor.to(self.doubled.device) * 2)
            elif name in ("up", "gate"):
                rows = slice(0, 256) if name == "up" else slice(256, 512)
                self.fused.data[rows].copy_(tensor)


FUSED_SPECS = {"up": wsync.Spec("BF16", (256, 256)), "gate": wsync.Spec("BF16", (256, 256)), "scale": wsync.Spec("BF16", (64,)),
               "ignored": wsync.Spec("F32", (16,))}


# Of the trainer, which publishes all in BF16, and of the engine.
CAST_SHAPES = {"wide": (513, 1000), "narrow": (4099,), "same": (64, 128)}
CAST_KINDS = {"wide": torch.float32, "narrow": torch.float16, "same": torch.bfloat16}


def begin(device):
    """The same kernels in every process, so that the same weights give the same bits."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    if device != "cpu":
        torch.cuda.set_device(torch.device(device))
    torch.manual_seed(0)


def batch_of(device):
    return torch.randn(64, 1024, generator=torch.Generator().manual_seed(1)).to(device=device, dtype=torch.bfloat16)


def bits(tensor):
    """The bytes of a tensor."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy()


def large_tensors(bytes_, device):
    return {f"model.layers.{n}.weight": torch.empty(bytes_ // LARGE_TENSORS // 2, dtype=torch.bfloat16, device=device)
            for n in range(LARGE_TENSORS)}


def sums(tensors):
    """A sum of each tensor's bytes, as 32-bit numbers."""
    return torch.stack([tensor.view(torch.int32).sum(dtype=torch.int64) for tensor in tensors.values()])


def tiny_transformer(device):
    import transformers
    config = transformers.Qwen3Config(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
                                      tie_word_embeddings=False)
    config._attn_implementation = "eager"
    return transformers.Qwen3ForCausalLM(config).to(device=device, dtype=torch.bfloat16).eval()


def tokens_of(device):
    return torch.arange(32, device=device).reshape(1, 32)


class Report:
    """The results of steps, and the lines that say which version computed them."""

    def __init__(self, folder):
        self.folder = folder
        self.version, self.steps, self.first, self.torn = None, 0, None, None

    def step(self, version, result):
        """Takes the result of a step without waiting for it, unless the version is another one."""
        words = result.detach().contiguous().view(-1).view(torch.uint8)
        if version != self.version:
            torn = 0 if self.torn is None else int(self.torn)
            path = os.path.join(self.folder, f"{version}-{os.getpid()}.npy")
            np.save(path, bits(result))
            print(json.dumps({"version": str(version), "steps": self.steps, "torn": torn, "result": path}), flush=True)
            self.version, self.steps, self.first = version, 0, words.clone()
            self.torn = torch.zeros((), dtype=torch.int64, device=result.device)
        self.torn += (words != self.first).any()
        self.steps += 1


class Engine(wsync.Replica):
    version = None

    def on_commit(self, version):
        self.version = version


def serve(engine, version_of, compute, report):
    print("ready", flush=True)
    while True:
        engine.poll(0 if engine.serving else None)
        if engine.serving:
            report.step(version_of(), compute())
            engine.step += 1


@torch.no_grad()
def main(what, socket, device, folder, bytes_=0):
    begin(device)
    report = Report(folder)
    if what == "transformers":
        from wsync.transformers import attach
        model, tokens = tiny_transformer(device), tokens_of(device)
        follower = attach(model, socket, "r0")
        print("ready", flush=True)
        while True:
            before = follower.version
            logits = model(tokens).logits
            if before is not None and before == follower.version:
                report.step(before, logits)
    if what == "large":
        held = large_tensors(int(bytes_), device)
        engine = Engine(socket, "r0", held)
        done = {}

        def compute():
            if done.get("version") != engine.version:
                done.update(version=engine.version, sums=sums(held))
            return done["sums"]
        serve(engine, lambda: engine.version, compute, report)
    if what == "casts":
        held = {name: torch.zeros(shape, dtype=CAST_KINDS[name], device=device) for name, shape in CAST_SHAPES.items()}
        engine = Engine(socket, "r0", held, casts={"wide": "BF16", "narrow": "BF16"})
        serve(engine, lambda: engine.version, lambda: torch.cat([tensor.reshape(-1).double() for tensor in held.values()]), report)
    if what == "plan":
        model = Fused().to(device)
        plan = wsync.torch.record(model, model.load_weights, FUSED_SPECS)
        assert sorted(plan.pieces) == ["gate", "up"] and list(plan.loaded) == ["scale"], (plan.pieces, plan.loaded)
        engine = plan.attach(socket, "r0")
        serve(engine, lambda: engine.version, lambda: torch.cat([model.fused.reshape(-1), model.doubled]), report)
    model, batch = Net().to(device), batch_of(device)
    engine = Engine(socket, "r0", model.state_dict())
    serve(engine, lambda: engine.version, lambda: model(batch), report)


if __name__ == "__main__":
    main(*sys.argv[1:])
