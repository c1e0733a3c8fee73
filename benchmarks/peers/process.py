"""Another library, in a process of its environment: prompts come in and outputs go out, one line of JSON each.

This module runs in environments without treespec, so it imports nothing of it.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Decode = Callable[[list[int], int, float, int], list[int]]
"""(prompt, number of new tokens at most, temperature or 0 for greedy, seed) to the new tokens."""


def serve() -> None:
    """Arguments: the library's name in `LIBRARIES`, its options as JSON and the model's folder."""
    name, options, folder = sys.argv[1:4]
    answers, sys.stdout = sys.stdout, sys.stderr  # Answers are not mixed with what a library prints.
    decode = LIBRARIES[name](folder, **json.loads(options))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        tokens = decode(request["prompt"], request["num_new"], request["temperature"], request["seed"])
        print(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - start}), file=answers, flush=True)


def economize(folder: str, head: str | None, cycle_length: int) -> Decode:
    """Drafts by prompt lookup, or by an EAGLE-3 head of this folder."""
    torch, library, model, end = *map(importlib.import_module, ("torch", "economize")), *_load(folder)
    if head is None:
        lookup = importlib.import_module("economize.techniques.lookup")
        drafting = library.apply(model, lookup.LookupConfig())
    else:
        with TemporaryDirectory() as complete:
            write_complete_head(Path(head), Path(complete), model)
            drafting = library.load(model, complete)

    def decode(prompt: list[int], num_new: int, temperature: float, seed: int) -> list[int]:
        torch.manual_seed(seed)
        options: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        verifier = "rejection" if temperature else "greedy"
        out = drafting.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_new,
            eos_token_id=end,
            decoding=library.DecodeConfig(cycle_length=cycle_length, verifier=verifier),
            **(options if temperature else {"do_sample": False}),
        )
        return out[0, len(prompt) :].tolist()

    return decode


def write_complete_head(head: Path, out: Path, model: Any) -> None:
    """An EAGLE-3 folder with the rows of the target's output embedding that the shipped one leaves to the target."""
    files = importlib.import_module("safetensors.torch")
    tensors = files.load_file(head / "model.safetensors")
    if "lm_head.weight" not in tensors:
        drafted = tensors["d2t"] + importlib.import_module("torch").arange(len(tensors["d2t"]))
        tensors["lm_head.weight"] = model.get_output_embeddings().weight.detach()[drafted].contiguous()
    files.save_file({name: _float32(tensor) for name, tensor in tensors.items()}, out / "model.safetensors")
    (out / "config.json").write_text((head / "config.json").read_text())


def _float32(tensor: Any) -> Any:
    return tensor.float() if tensor.is_floating_point() else tensor


def dejavuu(folder: str, method: str, budget: int, is_tree: bool) -> Decode:
    """One drafter for all prompts, which learns from call to call."""
    decoders, engine, drafters, sampling = (
        importlib.import_module(f"dejavuu.{name}")
        for name in ("decoders.hf", "core.engine", "drafters", "core.sampling")
    )
    model = decoders.HFBackend(folder, device="cpu", dtype="float32", attn_implementation="sdpa")
    drafter, end = drafters.make_drafter(method), model._model.generation_config.eos_token_id

    def decode(prompt: list[int], num_new: int, temperature: float, seed: int) -> list[int]:
        sampler = sampling.Sampler(temperature, 1.0, seed) if temperature else None
        found = engine.generate(model, prompt, num_new, drafter, budget, end, tree=is_tree, sampler=sampler)
        return list(map(int, found.tokens))

    return decode


def vllm(folder: str, speculation: dict[str, Any] | None) -> Decode:
    """One request at a time; the prompt is read again in every call."""
    library: Any = importlib.import_module("vllm")
    llm = library.LLM(
        folder, dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=1, seed=0, block_size=32,
        kv_cache_memory_bytes=1 << 28, enable_prefix_caching=False, speculative_config=speculation,
    )  # fmt: skip

    def decode(prompt: list[int], num_new: int, temperature: float, seed: int) -> list[int]:
        params = library.SamplingParams(temperature=temperature, max_tokens=num_new, seed=seed if temperature else None)
        answer = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
        return list(answer.outputs[0].token_ids)

    return decode


def treespec(folder: str, head: str, tree: str | int) -> Decode:
    """Decode by this environment's treespec: drafts of the head in that folder, in 8 bits, and warm lookups."""
    torch, library, model = importlib.import_module("torch"), importlib.import_module("treespec"), _load(folder)[0]
    library.optimize(model, is_remeasured=True)
    trained = library.load_drafter(head, model)
    library.optimize(trained.head, dtype=torch.int8)
    drafters = [trained, *library.WarmStart.shipped("SmolLM2-135M-Instruct").drafters()]
    speculation = library.TreeSpeculation(drafters, tree=library.Chain(4) if tree == "chain-4" else tree)

    def decode(prompt: list[int], num_new: int, temperature: float, seed: int) -> list[int]:
        torch.manual_seed(seed)
        ids = torch.tensor([prompt])
        options: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        options = options if temperature else {"do_sample": False}
        options |= {"attention_mask": torch.ones_like(ids), "max_new_tokens": num_new, "custom_generate": speculation}
        return model.generate(ids, **options)[0, len(prompt) :].tolist()

    return decode


def _load(folder: str) -> tuple[Any, Any]:
    """The model in float32 and its end-of-sequence token."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    return model, model.generation_config.eos_token_id


LIBRARIES = {library.__name__: library for library in (economize, dejavuu, treespec, vllm)}
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def environment(threads: int) -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}
