#!/usr/bin/env python3
"""Writes defaults.json: the config of every family as transformers 5.24.0 fills it in when a file says nothing.

Run by hand, as tests/fixtures/generate.py is, with the packages named there.
"""

import json
import pathlib

import transformers

FAMILIES = """
    bert bloom camembert cohere cohere2 distilbert falcon gemma gemma2 gemma3_text gpt2 gpt_neox granite llama mistral
    mixtral mpt nemotron olmo olmo2 olmo3 opt phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe roberta smollm3 stablelm
    starcoder2 t5 vit xlm-roberta
""".split()
# Keys of every config, which say nothing about the model.
COMMON = """
    _name_or_path architectures bos_token_id chunk_size_feed_forward dtype eos_token_id id2label initializer_range
    is_encoder_decoder label2id output_attentions output_hidden_states problem_type return_dict transformers_version
    use_cache
""".split()


def without_common(config):
    return {key: without_common(value) if isinstance(value, dict) else value
            for key, value in config.items() if key not in COMMON}


lines = []
for family in FAMILIES:
    config = json.loads(transformers.AutoConfig.for_model(family).to_json_string(use_diff=False))
    lines.append(json.dumps({"model_type": family} | without_common(config)))
path = pathlib.Path(__file__).with_name("defaults.json")
path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
