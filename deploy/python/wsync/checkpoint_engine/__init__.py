"""wsync for engines that speak checkpoint-engine's worker protocol: stock vLLM and SGLang follow a trainer without code of wsync.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL \\
        --worker-extension-cls checkpoint_engine.worker.VllmColocateWorkerExtension
    python -m wsync.checkpoint_engine --sidecar host0 --replica r0 \\
        --engine-url http://127.0.0.1:8000 --kind vllm

    python -m sglang.launch_server --model-path MODEL
    python -m wsync.checkpoint_engine --sidecar host0 --replica r0 \\
        --engine-url http://127.0.0.1:30000 --kind sglang

The process is a replica of the sidecar that borrows versions of any layout. For each of them it pauses the engine by its HTTP
route, asks it to update its weights, and is then the server's side of the protocol: for each GPU of the engine one buffer of two
halves, whose CUDA IPC handle the worker is given, and then lists of what one half holds, while the other half is filled. The
engine is resumed when the fleet has committed the version. Nothing that is received is unpickled: the replies of the workers are
bytes.

* **Layers in order**, and a layer in one list if a half has room for it. A tensor that is larger than `--bucket` makes the buffer
  larger: two halves of its size. The GPU needs that memory during a load.
* **Deadlines.** Each message of a worker has `--timeout`, and the HTTP call is watched meanwhile. A failure is the sentence that
  the fleet reads: what the worker's traceback ends with, the answer of the HTTP call, or which worker was silent and for what.
* **After a failure** every worker is sent an exception, so that it leaves the update; one that hangs is sent it when it is back.
  Until then further loads are refused with that reason. The weights of the engine may be of two versions: it stays paused until a
  version has been loaded completely. The sidecar tries again, and then loads the version before.
* **An engine that ends** is detached, and attached again when its HTTP server is back; it is given the fleet's version then. One
  that was restarted unseen is recognised by the version that the server reports (`/weight_info`, `/model_info`).
* **If this process is killed** during a load, its workers wait. The next process with the same socket and replica frees them.

Pause modes: vLLM has all. SGLang has no "wait", and is paused with the sidecar's `fallback_pause_mode` after `deadlines.pause`;
"keep" is its "retract" (keys and values are computed again), and with `--cache keep` its "in_place".

Limits of the protocol: SGLang only logs a failure of what it does after the load. An engine with a draft model loads one set of
weights into both (vLLM), or asks for a second update, which is not served and fails (SGLang). This process must run on the
engine's host, under its user, and see its GPUs and the endpoints in the directory of the sidecar's socket.

Run with: checkpoint-engine 0.4.2, its own worker code in processes of their own, with shared memory of the host in the place of
CUDA IPC and an HTTP server of the test in the place of the engine. Not run: GPUs, vLLM's and SGLang's own servers with it, Ascend
NPUs (absent).
"""
