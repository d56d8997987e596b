"""Compares a training trace with the model itself: every logprob recomputed by transformers from the ids alone.

usage: recompute.py MODEL TRACE...
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

# float32 on another order of sums; the engine's own attention is not bit for bit that of transformers.
TOLERANCE = 1e-3

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
turns = tokens = 0
worst = 0.0
for path in sys.argv[2:]:
    for turn in json.load(open(path))["turns"]:
        prompt, sampled = turn["prompt_token_ids"], turn["completion_token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
        own = torch.log_softmax(logits, -1).gather(1, torch.tensor(sampled)[:, None])[:, 0]
        given = torch.tensor(turn["per_token_logps"])
        assert given.shape == own.shape, turn["node_id"]
        off = (own - given).abs().max().item()
        assert off < TOLERANCE, (path, turn["node_id"], off)
        worst = max(worst, off)
        turns, tokens = turns + 1, tokens + len(sampled)
assert tokens > 0, "nothing to compare"
print(f"{turns} turns, {tokens} tokens: no logprob differs by more than {worst:.1e}")
