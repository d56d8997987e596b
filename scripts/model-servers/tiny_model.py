"""Writes a GGUF file with a llama of two small layers, random weights and one token per byte."""

import sys

import gguf
import numpy

WIDTH, HEADS, LAYERS, INNER = 64, 4, 2, 128
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens():
    """How GPT-2's vocabulary spells each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


random = numpy.random.default_rng(7)


def weights(*shape, scale=0.05):
    return (random.standard_normal(shape) * scale).astype(numpy.float32)


special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
tokens = [*byte_tokens(), *special, "th"]
kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL]
writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_name("tiny")
writer.add_context_length(131072)
writer.add_embedding_length(WIDTH)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(INNER)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_dimension_count(WIDTH // HEADS)
writer.add_vocab_size(len(tokens))
writer.add_file_type(gguf.LlamaFileType.ALL_F32)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list(tokens)
writer.add_token_types(kinds)
writer.add_token_merges(["t h"])
writer.add_bos_token_id(256)
writer.add_eos_token_id(258)
writer.add_add_bos_token(False)
writer.add_chat_template(TEMPLATE)
writer.add_tensor("token_embd.weight", weights(len(tokens), WIDTH, scale=1.0))
writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
writer.add_tensor("output.weight", weights(len(tokens), WIDTH, scale=0.2))
for layer in range(LAYERS):
    name = f"blk.{layer}."
    for norm in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"{name}{norm}.weight", numpy.ones(WIDTH, numpy.float32))
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"{name}{part}.weight", weights(WIDTH, WIDTH))
    writer.add_tensor(f"{name}ffn_gate.weight", weights(INNER, WIDTH))
    writer.add_tensor(f"{name}ffn_up.weight", weights(INNER, WIDTH))
    writer.add_tensor(f"{name}ffn_down.weight", weights(WIDTH, INNER))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
