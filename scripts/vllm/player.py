"""A logits processor that makes a model of random weights play a script through an agent's tools.

The next token of the script is favoured so much that nothing else is sampled; vLLM's raw logprobs are taken before
that, so they stay those of the model itself. A request without tools ends after a few tokens of the model's own.
"""

import json
import os

import torch
from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import LogitsProcessor

ASIDE_TOKENS = 12
FAVOUR = 1e4


class Player(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        self.tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.model)
        self.end = self.tokenizer.eos_token_id
        self.script = json.load(open(os.environ["PLAYER_SCRIPT"]))
        self.rows = {}

    def is_argmax_invariant(self):
        return False

    def says(self, prompt):
        """What is to be said after a prompt; none of it where there are no tools."""
        text = self.tokenizer.decode(prompt, skip_special_tokens=False)
        if "# Tools" not in text:
            return None
        talk = text[text.rindex("# Tools"):]
        step = talk.count("<|im_start|>assistant\n") - 1
        return self.tokenizer.encode(self.script[min(step, len(self.script) - 1)], add_special_tokens=False) + [self.end]

    def update_state(self, batch_update):
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.rows.pop(index, None)
        for index, _params, prompt, output in batch_update.added:
            self.rows[index] = (self.says(prompt), output)
        for source, target, direction in batch_update.moved:
            moved = self.rows.pop(source, None)
            swapped = self.rows.pop(target, None)
            if moved is not None:
                self.rows[target] = moved
            if swapped is not None and direction.name == "SWAP":
                self.rows[source] = swapped

    def apply(self, logits):
        for index, (says, output) in self.rows.items():
            done = len(output)
            if says is None and done >= ASIDE_TOKENS:
                logits[index, self.end] += FAVOUR
            elif says is not None:
                logits[index, says[min(done, len(says) - 1)]] += FAVOUR
        return logits
