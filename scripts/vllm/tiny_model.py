"""Makes a tiny Qwen3 of random weights, with a tokenizer trained on this repository's own text.

usage: tiny_model.py DIRECTORY TEXT...
"""

import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]

# Tool calls as the Hermes parser reads them.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% elif message.content %}{% for part in message.content %}\
{{ part.text }}{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": \
{% if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}\
{% endif %}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

directory = pathlib.Path(sys.argv[1])
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=4096, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
)
tokenizer.train(sys.argv[2:], trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
)
# Calls are plain text to the parser, so they must not be left out of what is said.
fast.save_pretrained(directory)

torch.manual_seed(7)
config = Qwen3Config(
    vocab_size=len(fast),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=65536,
    tie_word_embeddings=True,
    eos_token_id=fast.eos_token_id,
    pad_token_id=fast.pad_token_id,
    torch_dtype="float32",
)
model = Qwen3ForCausalLM(config).float()
# Random weights are nearly uniform; sharper ones show more of what sampling does.
with torch.no_grad():
    model.model.embed_tokens.weight.mul_(12)
model.save_pretrained(directory)
# As real models have them: a request that names no sampling gets these.
defaults = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True, "eos_token_id": fast.eos_token_id}
(directory / "generation_config.json").write_text(json.dumps(defaults))
