"""One training run of TRL with a vLLM server. Prints what came of it as JSON.

Usage: trl_train.py MODEL URL RUN_DIR STATE_DIR STEPS follow|drop

It ends after STEPS steps, or after at least 25 as soon as the reward of a step is above 0.9: how many steps that takes depends on the
samples, which differ from processor to processor.
"""
import json
import statistics
import sys

from datasets import Dataset

import wsync.trl

MODEL, URL, RUN_DIR, STATE_DIR, STEPS, UPDATES = sys.argv[1:]
transfer = wsync.trl.patch({"run_dir": RUN_DIR, "state_dir": STATE_DIR})
if UPDATES == "drop":  # the control: the server keeps the weights that it was started with
    transfer.send_weights = lambda iterator: [None for _ in iterator]

from transformers import TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class EndWhenLearned(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.global_step >= 25 and float((logs or {}).get("reward", 0)) > 0.9:
            control.should_training_stop = True


def reward(completions, completion_ids, **_):
    """The share of tokens below 128: easily learned, and a quarter of them at the start."""
    return [sum(token < 128 for token in tokens) / max(1, len(tokens)) for tokens in completion_ids]


trainer = GRPOTrainer(
    model=MODEL, reward_funcs=reward, callbacks=[EndWhenLearned()],
    train_dataset=Dataset.from_dict({"prompt": ["Hello", "wsync", "weights", "model"] * 8}),
    args=GRPOConfig(output_dir=f"{STATE_DIR}/trl", use_vllm=True, vllm_mode="server", vllm_server_base_url=URL,
                    per_device_train_batch_size=16, num_generations=8, max_completion_length=24, max_steps=int(STEPS),
                    learning_rate=2e-3, logging_steps=1, report_to=[], use_cpu=True, bf16=False, save_strategy="no", temperature=1.0,
                    beta=0.0, seed=1, model_init_kwargs={"dtype": "float32"}, gradient_checkpointing=False, disable_tqdm=True))
trainer.train()
history = [entry for entry in trainer.state.log_history if "reward" in entry]
print(json.dumps({
    "rewards": [float(entry["reward"]) for entry in history],
    "differences": [float(entry["sampling/sampling_logp_difference/mean"]) for entry in history],
    "updates": len(transfer.updates),
    "paused_ms": statistics.median(status.paused_s * 1e3 for status in transfer.updates) if transfer.updates else None}))
