"""Models x weights x adapters x prompts x constraints: texts are plain `generate`'s, up to what rounding does to it."""

import string
from importlib.util import find_spec
from itertools import product

import pytest
import torch
from helpers import multimodal, zoo
from helpers.grammars import Rising
from helpers.tiny import lookups, padded
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LogitsProcessorList

from treespec.grammars import GrammarProcessor

pytestmark = pytest.mark.filterwarnings("ignore")
MODELS = {name: zoo.BY_NAME[name] for name in ("llama", "mistral", "mixtral", "mamba")}
MODELS |= {name: multimodal.BY_NAME[name] for name in ("llava", "lfm2_vl")}
WITH_STATES = ("mamba", "lfm2_vl")
WEIGHTS = {
    "float32": lambda model: model,
    "float16": lambda model: model.half(),
    "bfloat16": lambda model: model.bfloat16(),
    "int8": lambda model: torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8),
}


def lora(model, **options):
    """With two adapters, the first of which is active."""
    config = LoraConfig(
        r=4, target_modules=r".*layers\.\d+\..*(q_proj|up_proj|in_proj)$", init_lora_weights=False,
        task_type="CAUSAL_LM", **options,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        adapted = get_peft_model(model, config, adapter_name="first")
        adapted.add_adapter("second", config)
    return adapted.eval()


def both(model):
    adapted = lora(model)
    adapted.base_model.set_adapter(["first", "second"])
    return adapted


ADAPTERS = {
    "none": lambda model: model,
    "LoRA": lora,
    "DoRA": lambda model: lora(model, use_dora=True),
    "two LoRAs": both,
    "LoRA merged": lambda model: lora(model).merge_and_unload(),
}
TEXTS = {
    "one text": lambda: padded(zoo.prompts(1, 12), [0]),
    "padded batch": lambda: padded(zoo.prompts(3, 12), [0, 4, 7]),
}
IMAGES = {"one text": [0], "padded batch": [0, 0, 0], "images": [1, 1], "an image and a text": [1, 0]}

CHARACTERS = {character: 3 + number for number, character in enumerate(string.digits + string.ascii_letters)}
END = zoo.SIZES["eos_token_id"]
PATTERN = "[a-f]{2,4}[0-9]{3}(x|yz)[A-D]{2,9}"


def outlines():
    import outlines_core as core

    return core.Index(PATTERN, core.Vocabulary(END, {character: [token] for character, token in CHARACTERS.items()}))


def xgrammar():
    import xgrammar as package

    names = {token: character for character, token in CHARACTERS.items()}
    vocab = [names.get(token, f"<{token}>") for token in range(zoo.VOCAB_SIZE)]
    info = package.TokenizerInfo(vocab, package.VocabType.RAW, vocab_size=zoo.VOCAB_SIZE, stop_token_ids=[END])
    return package.GrammarCompiler(info).compile_regex(PATTERN)


def under(make_grammar):
    return lambda: {"logits_processor": LogitsProcessorList([GrammarProcessor(make_grammar())])}


CONSTRAINTS = {
    "none": dict,
    "repetition penalty": lambda: {"repetition_penalty": 1.4},
    "allowed tokens": lambda: {"prefix_allowed_tokens_fn": lambda row, ids: list(range(3 + len(ids) % 2, 64, 2))},
    "own grammar": under(Rising),
}
if find_spec("outlines_core"):
    CONSTRAINTS["outlines-core"] = under(outlines)
if find_spec("xgrammar"):
    CONSTRAINTS["xgrammar"] = under(xgrammar)


def can_be_compared(name, weights, adapter):
    """Not int8 layers with adapters, which PEFT does not take, or with states, whose own passes fail."""
    return weights != "int8" or (name not in WITH_STATES and adapter == "none")


GROUPS = [
    pytest.param(*group, marks=[] if group[1] == "float32" and group[2] in ("none", "LoRA") else pytest.mark.slow)
    for group in product(MODELS, WEIGHTS, ADAPTERS)
    if can_be_compared(*group)
]


def inputs_of(name, prompt):
    return TEXTS[prompt]() if name in zoo.BY_NAME else multimodal.prompts(MODELS[name], IMAGES[prompt])


def perturbed(model, decode):
    """Outputs of plain decoding from embeddings changed by rounding, which now and then chooses other experts."""
    generator = torch.Generator().manual_seed(0)

    def change(module, inputs, output):
        noise = torch.randn(output.shape, generator=generator)
        return (output * (1 + torch.finfo(output.dtype).eps * noise)).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(change)
    others = [decode() for _ in range(8)]
    handle.remove()
    return others


def is_tie(plain, others, row, step):
    """Whether the two best scores of a new token are within twice the difference that rounding makes to them."""
    end, noise = plain.sequences.shape[1] - len(plain.scores) + step, 0.0
    scores = plain.scores[step][row].float()
    for other in others:
        if not torch.equal(other.sequences[row, :end], plain.sequences[row, :end]):
            return True
        difference = other.scores[step][row].float() - scores
        noise = max(noise, float(difference[difference.isfinite()].abs().max()))
    best = scores.topk(2).values
    return float(best[0] - best[1]) <= 2 * noise


@pytest.mark.parametrize(("name", "weights", "adapter"), GROUPS)
def test_texts_are_plain_generates(name, weights, adapter):
    """Every group takes the next three pairs of a prompt and a constraint."""
    kind, pairs = MODELS[name], list(product(TEXTS if name in zoo.BY_NAME else IMAGES, CONSTRAINTS))
    model = (zoo if name in zoo.BY_NAME else multimodal).build(kind)
    model = ADAPTERS[adapter](WEIGHTS[weights](model))
    first = 21 * (list(WEIGHTS).index(weights) * len(ADAPTERS) + list(ADAPTERS).index(adapter))
    for prompt, constraint in (pairs[(first + 7 * number) % len(pairs)] for number in range(3)):
        given = inputs_of(name, prompt) | {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        given |= {key: value.to(model.dtype) for key, value in given.items() if key == "pixel_values"}
        settings = {"output_scores": True, "return_dict_in_generate": True}
        decode = lambda **more: model.generate(**given, **settings, **CONSTRAINTS[constraint](), **more)  # noqa: B023, E731
        plain, out = decode(), decode(custom_generate=lookups()).sequences
        start, width = given["input_ids"].shape[1], min(out.shape[1], plain.sequences.shape[1])
        differs = out[:, start:width] != plain.sequences[:, start:width]
        rows = differs.any(1).nonzero().flatten().tolist()
        assert rows or torch.equal(out, plain.sequences), (prompt, constraint)
        others = perturbed(model, decode) if rows else []
        for row in rows:  # After a tie either text may end first.
            assert is_tie(plain, others, row, int(differs[row].nonzero()[0])), (prompt, constraint, row)
