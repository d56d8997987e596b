"""Compares a rollout's training trace with the model itself: every logprob computed anew by transformers from the ids.

usage: recompute.py MODEL RESULT TRACE
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

# float32 in another order of sums.
TOLERANCE = 1e-3

logging.disable_progress_bar()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
result, trace = (json.load(open(path)) for path in sys.argv[2:])
assert (result["ended"], result["reward"], result["reward_valid"]) == ("completed", 1.0, True), result["error"]
turns = tokens = 0
worst = 0.0
for turn in trace["turns"]:
    prompt, sampled = turn["prompt_token_ids"], turn["completion_token_ids"]
    finish = turn["response"]["choices"][0]["finish_reason"]
    assert finish in ("stop", "tool_calls"), (turn["node_id"], finish)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    own = torch.log_softmax(logits, -1).gather(1, torch.tensor(sampled)[:, None])[:, 0]
    given = torch.tensor(turn["per_token_logps"])
    assert given.shape == own.shape, turn["node_id"]
    off = (own - given).abs().max().item()
    assert off < TOLERANCE, (turn["node_id"], off)
    worst = max(worst, off)
    turns, tokens = turns + 1, tokens + len(sampled)
assert tokens == result["usage"]["trainable_tokens"] > 0, (tokens, result["usage"])
outage = result["timings"].get("outage_s", 0)
print(f"{result['usage']['calls']} calls, {turns} turns, {tokens} tokens trained; no logprob is off by more than {worst:.1e}; outage {outage:.1f} s")
for finding in result["findings"]:
    print(f"  [{finding['level']}] {finding['code']}: {finding['text']}")
