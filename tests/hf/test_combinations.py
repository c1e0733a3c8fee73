"""Models x prompts x constraints, all with an adapter: texts are plain `generate`'s."""

import string
from importlib.util import find_spec
from itertools import product

import pytest
import torch
from helpers import multimodal, zoo
from helpers.grammars import Rising
from helpers.tiny import identical, padded
from peft import LoraConfig, get_peft_model
from transformers import LogitsProcessorList

from treespec.grammars import GrammarProcessor

pytestmark = pytest.mark.filterwarnings("ignore")
MODELS = {name: zoo.BY_NAME[name] for name in ("llama", "mixtral", "mamba")}
MODELS |= {name: multimodal.BY_NAME[name] for name in ("llava", "lfm2_vl")}
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


def with_adapters(model):
    """With two of them, the first of which is active."""
    layers = r".*layers\.\d+\..*(q_proj|up_proj|in_proj)$"
    config = LoraConfig(r=4, target_modules=layers, init_lora_weights=False, task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        adapted = get_peft_model(model, config, adapter_name="first")
        adapted.add_adapter("second", config)
    return adapted.eval()


@pytest.mark.parametrize("name", MODELS)
def test_texts_are_plain_generates(name):
    """Every model takes five pairs of a prompt and a constraint, other ones than the others."""
    is_text = name in zoo.BY_NAME
    model = with_adapters((zoo if is_text else multimodal).build(MODELS[name]))
    pairs, first = list(product(TEXTS if is_text else IMAGES, CONSTRAINTS)), 35 * list(MODELS).index(name)
    for prompt, constraint in (pairs[(first + 7 * number) % len(pairs)] for number in range(5)):
        inputs = TEXTS[prompt]() if is_text else multimodal.prompts(MODELS[name], IMAGES[prompt])
        identical(model, inputs, max_new_tokens=12, **CONSTRAINTS[constraint]())
