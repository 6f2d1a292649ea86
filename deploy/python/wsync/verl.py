"""wsync in verl: the rollout of a disaggregated verl follows its actor.

    python -m verl.trainer.main_ppo ... \\
        actor_rollout_ref.rollout.checkpoint_engine.backend=wsync \\
        actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=wsync.verl \\
        +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.wsync.dtype=BF16

Start the sidecar of each host first (`wsync sidecar --set name=host0`). verl imports this module on every worker, and it registers itself. The
actor's rank 0 becomes the trainer of the fleet: it publishes each step as it gathers the weights, one tensor at a time. Each
rollout worker reads the version of that step out of the memory in which the sidecar has staged it, without a copy, and verl hands
the tensors on to its engine. So the version is checked before an engine sees it, and the engine's memory is verl's to write.

The keys of `engine_kwargs.wsync`:

| key | what |
|---|---|
| `settings` | of the fleet, on the actor's rank 0, as for `wsync.Publisher` |
| `dtype` | that is published: BF16 (default), F16 or F32; null: as the actor has them |
| `socket` | the name of the sidecar, or the path of its engine socket, on rollout workers. Default: as `wsync.vllm` finds it |
| `timeout` | seconds for a version to be staged; 600 by default |

verl itself stops generation before it calls the sender, so the time of the transfer is not hidden behind generation. It has no
way back: when an update fails, its trainer ends.

Tested with verl 0.9.1's own base class, registry and manager's calls, and a real sidecar and publisher. Not run: a training,
which needs GPUs; vLLM and SGLang of verl; actors of several ranks, of which all gather and rank 0 alone publishes. Sidecars of
other hosts need keys (deploy/guides/many_hosts.md), which was not run.
"""
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any, Optional

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

import wsync

from ._sidecars import adapter_socket
from ._tensors import copyable
from .torch import as_tensor


@CheckpointEngineRegistry.register("wsync")
class WsyncCheckpointEngine(CheckpointEngine):
    """verl's two ends of a transfer; which one a worker is, its calls say.

    Args:
        bucket_size: of verl; not used, because nothing is put into buckets.
        is_master: of the actor's rank 0.
        settings, dtype, socket, timeout: see the module.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, *, settings: Optional[Mapping[str, Any]] = None,
                 dtype: Optional[str] = "BF16", socket: Optional[str] = None, timeout: float = 600.0):
        del bucket_size
        self._is_master = is_master
        self._settings = {"min_replicas": 0, **(settings or {})}  # the rollouts read, and are no replicas of the fleet
        self._dtype = dtype
        self._socket = socket
        self._timeout = timeout
        self._publisher: Optional[wsync.Publisher] = None
        self._steps = 0

    def prepare(self) -> dict[str, Any]:
        """Opens the fleet's addresses on the actor's rank 0. There is nothing to tell the others."""
        if self._is_master and self._publisher is None:
            self._publisher = wsync.Publisher(settings=self._settings)
        return {}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]) -> tuple[dict, dict]:
        """No worker needs to know another: they meet at the sidecar of their host."""
        del metadata
        return {"rank": list(range(actor_wg_world_size))}, {"rank": [-1] * rollout_world_size}

    def init_process_group(self, **kwargs: Any) -> None:
        """Nothing: there is no group."""

    def finalize(self) -> None:
        """Nothing: memory is the fleet's, and is used again for the next version."""

    async def send_weights(self, weights: Generator, global_steps: Optional[int] = None) -> dict[str, float]:
        """Publishes a version, and returns when every sidecar has staged and verified it.

        Args:
            weights: (name, tensor) pairs. Every rank gathers each of them; rank 0 publishes.
            global_steps: the number of the step. None: the next free one.

        Returns:
            What it took, for the trainer's metrics; nothing on ranks other than 0.

        Raises:
            wsync.Error: it was not published, or not staged. All tensors have been gathered even so, as the other ranks expect.
        """
        rest = iter(weights)
        if not self._is_master:
            await _each(rest, lambda name, tensor: None)
            return {}
        try:
            if self._publisher is None:
                raise wsync.InvalidInput("prepare() has not been called on the actor's rank 0")
            with self._publisher.version(_number(global_steps)) as draft:
                def put(name: str, tensor: Any) -> None:
                    tensor = tensor.detach()
                    draft.put(name, copyable(tensor), dtype=self._dtype if tensor.dtype.is_floating_point else None)

                await _each(rest, put)
        except BaseException:
            for _ in rest:  # other ranks take part in gathering each tensor, and would wait for this one
                pass
            raise
        status = await asyncio.to_thread(draft.publish.wait, "staged", self._timeout)
        return {"wsync/snapshot_s": status.snapshot_s, "wsync/staged_s": status.staged_s}

    async def receive_weights(self, global_steps: Optional[int] = None) -> AsyncGenerator:  # type: ignore[override]
        """Yields the (name, tensor) pairs of a version, over the memory in which it is staged: read-only, and valid until the next
        pair is asked for.

        Args:
            global_steps: the number of the step that the actor sends. None: the newest one that is staged.

        Raises:
            wsync.Error: it is not staged in time.
        """
        socket = self._socket or await asyncio.to_thread(adapter_socket)
        with await asyncio.to_thread(wsync.Reader, socket) as reader:
            with await asyncio.to_thread(reader.open, step=_number(global_steps), timeout=self._timeout) as staged:
                for name, array in staged.tensors.items():
                    yield name, as_tensor(array)


def _number(global_steps: Optional[int]) -> Optional[int]:
    """wsync's number of a step of verl, whose first one is 0."""
    return None if global_steps is None else int(global_steps) + 1


async def _each(weights: Any, use: Any) -> None:
    """Calls `use` with each pair. Gathering is work of the GPU, so other tasks of the event loop go on between two pairs."""
    for name, tensor in weights:
        use(name, tensor)
        await asyncio.sleep(0)
