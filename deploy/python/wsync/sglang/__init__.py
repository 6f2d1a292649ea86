"""wsync in SGLang: a running server follows a trainer. Not run with a server: see below.

    SGLANG_PLUGINS=wsync python -m sglang.launch_server --model-path MODEL

Start the sidecar of the host first (`wsync sidecar --set name=host0`). `wsync.sglang.register` is the entry point of the group
`sglang.srt.plugins`, which SGLang calls in each of its processes; it does nothing unless `SGLANG_PLUGINS` names it. Each
scheduler process attaches as one rank (its tensor-parallel rank) that borrows the versions, and looks at its link between two
steps of its event loop. Rank 0 leads: what all ranks must do at the same step (pause, load, resume) is added to the requests that
SGLang broadcasts from rank 0 in each turn of the loop, behind the requests of that turn.

Settings are those of `wsync.vllm`: `WSYNC_ENGINE_SOCKET`, `WSYNC_ENGINE_REPLICA` (default: `sglang-PORT`) and
`WSYNC_ENGINE_CACHE`.

What the schedulers do in each pause mode:

* `keep`: running requests go back to the queue, and their keys and values are computed again (`retract`). With
  `WSYNC_ENGINE_CACHE=keep` they keep their place and their keys and values (`in_place`).
* `wait`: rank 0 holds new requests back until the running ones have ended.
* `abort`: as `wait`, and the running ones are aborted.

Refused, with the reason in the log: several data-parallel or pipeline ranks, attention of its own for data-parallel ranks,
separate prefill and decode, a draft model, the Rust server, several nodes. Do not use SGLang's own routes for pausing and
updating meanwhile. `/model_info` goes on to report the version that the server was started with; the answers of requests have the
versions.

For a server without the plugin there is a loader for weights that are staged on its host, which another program starts at a
moment when the engine is paused:

    python -m sglang.launch_server --model-path MODEL --custom-weight-loader wsync.sglang.load
    POST /update_weights_from_tensor with load_format "wsync.sglang.load" and one tensor, ("wsync.step", tensor([STEP]))

Tested: with sglang 0.5.23's own classes in two processes on the CPU (its registry of hooks, the receiver that broadcasts over
gloo, the scheduler's own turn of the loop, the session of a weight update), with a stand-in for the model, its runner, and the
work of the event loop. **Not run**: a server, because every SGLang that can be installed needs CUDA.
"""
from __future__ import annotations

import os
from typing import Any

from .._errors import InvalidInput

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
HOOKS = {f"{_SCHEDULER}.run_event_loop": ("started", "BEFORE"), f"{_SCHEDULER}.ingest_requests": ("turn", "BEFORE"),
         f"{_RECEIVER}._pull_raw_reqs": ("pulled", "AFTER"), f"{_SCHEDULER}.process_input_requests": ("dispatched", "AROUND")}
STEP = "wsync.step"
_OPEN_S = 60.0


def register() -> None:
    """The entry point `sglang.srt.plugins`. Does nothing unless the environment variable SGLANG_PLUGINS names "wsync"."""
    if "wsync" not in [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from . import scheduler
    for target, (function, kind) in HOOKS.items():
        HookRegistry.register(target, getattr(scheduler, function), HookType[kind])


def load(model: Any, named_tensors: Any) -> None:
    """A custom weight loader of SGLang: loads a version that is staged on this host into the model of this rank.

    Args:
        model: the model, as SGLang passes it.
        named_tensors: (name, tensor) pairs; the tensor "wsync.step" is the number of the training step, the same on all ranks.

    Raises:
        InvalidInput: there is no such tensor.
        wsync.Error: the version is not staged within 60 s.
    """
    from .. import Reader
    from ..torch import as_tensor
    from .._sidecars import adapter_socket
    step = dict(named_tensors).get(STEP)
    if step is None:
        raise InvalidInput(f"the loader needs the tensor '{STEP}' with the number of the training step, so that all ranks load the "
                           "same version")
    device = next(model.parameters()).device
    with Reader(adapter_socket()) as reader, reader.open(step=int(step), timeout=_OPEN_S) as staged:
        model.load_weights((name, as_tensor(array).to(device)) for name, array in staged.tensors.items())
