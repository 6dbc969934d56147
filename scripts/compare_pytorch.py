"""Measures burnformer and its peers in turn, row by row, and prints the ratios. Started by scripts/compare-pytorch."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

MODELS = pathlib.Path(os.environ.get("BURNFORMER_MODELS", ""))
DECODER = MODELS / "smollm2-135m-instruct"
EMBEDDER = MODELS / "all-minilm-l6-v2"
# Rows with the peers that run them.
ROWS = {
    "block": ["pytorch"],
    "attention": ["pytorch"],
    "decode": ["pytorch", "llama.cpp f32"],
    "decode-quantised": ["llama.cpp Q8_0"],
    "prefill": ["pytorch", "llama.cpp f32"],
    "embed": ["pytorch"],
    "train-step": ["pytorch"],
}
PROMPT, STEPS, PREFILL = 32, 32, 512


# ---------------------------------------------------------------------------------------------------------------------
# Peers, each in a process of its own: seconds of every run
# ---------------------------------------------------------------------------------------------------------------------


def timed(run, samples, warm_up=2):
    for _ in range(warm_up):
        run()
    seconds = []
    for _ in range(samples):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def token_ids(batch, seq, vocab_size):
    """As the bench of burnformer has them."""
    return [[(row * seq + at) * 7919 % vocab_size for at in range(seq)] for row in range(batch)]


def pytorch(row, samples):
    import torch

    torch.manual_seed(0)
    if row == "train-step":
        layer = torch.nn.TransformerEncoderLayer(
            512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        stack = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        optimizer = torch.optim.AdamW(stack.parameters(), lr=1e-4)
        x = torch.randn(4, 256, 512)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(256)

        def step():
            optimizer.zero_grad()
            stack(x, mask=mask, is_causal=True).square().mean().backward()
            optimizer.step()

        return timed(step, samples)
    with torch.inference_mode():
        if row == "block":
            layer = torch.nn.TransformerEncoderLayer(
                768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True
            ).eval()
            x = torch.randn(1, 512, 768)
            return timed(lambda: layer(x), samples)
        if row == "attention":
            query, key, value = (torch.randn(1, 12, 2048, 64) for _ in range(3))
            attention = torch.nn.functional.scaled_dot_product_attention
            return timed(lambda: attention(query, key, value, is_causal=True), samples)
        if row == "embed":
            from transformers import AutoModel

            model = AutoModel.from_pretrained(EMBEDDER, dtype=torch.float32).eval()
            ids = torch.tensor(token_ids(32, 128, model.config.vocab_size))
            mask = torch.ones_like(ids)
            return timed(lambda: model(input_ids=ids, attention_mask=mask), samples)
        from transformers import AutoModelForCausalLM

        (file,) = DECODER.glob("*.gguf")
        model = AutoModelForCausalLM.from_pretrained(DECODER, gguf_file=file.name, dtype=torch.float32).eval()
        if row == "prefill":
            ids = torch.tensor(token_ids(1, PREFILL, model.config.vocab_size))
            return timed(lambda: model(ids), samples)

        prompt = torch.tensor(token_ids(1, PROMPT, model.config.vocab_size))

        def decode():
            cache = model(prompt, use_cache=True).past_key_values
            token = torch.tensor([[1]])
            start = time.perf_counter()
            for _ in range(STEPS):
                output = model(token, past_key_values=cache, use_cache=True)
                token = output.logits[:, -1:].argmax(-1)
            return (time.perf_counter() - start) / STEPS

        decode()
        return [decode() for _ in range(samples)]


def llama_cpp(kind, row, samples):
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(quantised(kind))
    parameters.n_ctx = 1024
    parameters.n_batch = parameters.n_ubatch = PREFILL
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = os.cpu_count()
    parameters.warmup = True
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)
    tokens = PREFILL if row == "prefill" else PROMPT
    made = 1 if row == "prefill" else STEPS + 1

    def run(index):
        # Another first token each time, so that nothing is found in a cache.
        prompt = [index + 2] + token_ids(1, tokens, 49152)[0][1:]
        request = {"prompt": prompt, "n_predict": made, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
        answer = server.handle_completions(request)
        answer = answer if isinstance(answer, dict) else json.loads(answer)
        timings = answer["timings"]
        if row == "prefill":
            return timings["prompt_ms"] / 1e3
        return timings["predicted_ms"] / timings["predicted_n"] / 1e3

    run(0)
    return [run(1 + index) for index in range(samples)]


def quantised(kind):
    """The decoder's file in another type of numbers, made from the one that is there."""
    import gguf
    import numpy

    (source,) = DECODER.glob("*.gguf")
    target = pathlib.Path(os.environ["BURNFORMER_CACHE"]) / "peer-models" / f"smollm2-135m-instruct-{kind.lower()}"
    target = target / f"model.{kind}.gguf"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    part = target.with_suffix(".part")
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(part, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        value_type = field.types[0]
        sub_type = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), value_type, sub_type=sub_type)
    wanted = gguf.GGMLQuantizationType[kind]
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "F32" else gguf.LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        is_matrix = len(tensor.shape) == 2
        if is_matrix and kind != "F32":
            writer.add_tensor(tensor.name, gguf.quantize(numbers, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(tensor.name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(target)
    return target


def peer(name, row, samples):
    return pytorch(row, samples) if name == "pytorch" else llama_cpp(name.split()[1].upper(), row, samples)


# ---------------------------------------------------------------------------------------------------------------------
# In turn
# ---------------------------------------------------------------------------------------------------------------------


def ours(program, row, backend, samples):
    """What the program says of a row, or why it left the row out."""
    command = [program, "bench", "--rows", row, "--backend", backend, "--samples", str(samples), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = json.loads(done.stdout) if done.returncode == 0 else []
    if not rows:
        return None, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it printed nothing"
    return rows[0], None


def theirs(name, row, samples):
    command = [sys.executable, __file__, "--peer", name, "--rows", row, "--samples", str(samples)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout.strip().splitlines()[-1]), None


def compare(arguments):
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{machine()}, {os.cpu_count()} cores",
        "samples": arguments.rounds * arguments.samples,
        "rows": [],
    }
    print(f"{report['date']}, {report['machine']}; median of {report['samples']}, fastest to slowest in brackets", flush=True)
    for row in arguments.rows:
        names = [f"burnformer {backend}" for backend in arguments.backends] + ROWS[row]
        found = {name: [] for name in names}
        spreads = {name: [] for name in names}
        details = {}
        for _ in range(arguments.rounds):
            for name in names:
                if name.startswith("burnformer "):
                    result, problem = ours(arguments.program, row, name.split()[1], arguments.samples)
                    if result:
                        found[name].append(result["seconds"])
                        spreads[name] += result["spread"]
                        details[name] = {key: result[key] for key in ("rate", "unit", "share_of_limit")}
                else:
                    result, problem = theirs(name, row, arguments.samples)
                    if result:
                        found[name].append(statistics.median(result))
                        spreads[name] += [min(result), max(result)]
                if problem:
                    details[name] = {"left_out": problem}
        for name in names:
            if not found[name]:
                print(f"{row:18} {name:20} left out: {details.get(name, {}).get('left_out')}", flush=True)
                report["rows"].append({"row": row, "who": name, **details.get(name, {})})
                continue
            seconds = statistics.median(found[name])
            low, high = min(spreads[name]), max(spreads[name])
            ratios = {other: seconds / statistics.median(found[other]) for other in ROWS[row] if found[other]}
            shown = ", ".join(f"{ratio:.2f} x {other}" for other, ratio in ratios.items() if other != name)
            share = details.get(name, {}).get("share_of_limit")
            shown += f", {share:.0%} of the limit" if share else ""
            print(f"{row:18} {name:20} {seconds * 1e3:9.2f} ms [{low * 1e3:.2f} to {high * 1e3:.2f}]  {shown}", flush=True)
            entry = {"row": row, "who": name, "seconds": seconds, "spread": [low, high], "ratios": ratios}
            report["rows"].append(entry | details.get(name, {}))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n")


def machine():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", help="the program burnformer")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help="rows [default: all]")
    parser.add_argument("--backends", type=lambda text: text.split(","), default=["flex", "libtorch"])
    parser.add_argument("--rounds", type=int, default=3, help="how often all are run in turn")
    parser.add_argument("--samples", type=int, default=7, help="runs of each in a round")
    parser.add_argument("--json", metavar="FILE", help="write the report there too")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [row for row in arguments.rows if row not in ROWS]
    if unknown:
        parser.error(f"there is no row `{unknown[0]}`; there are {', '.join(ROWS)}")
    if arguments.peer:
        print(json.dumps(peer(arguments.peer, arguments.rows[0], arguments.samples)))
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
