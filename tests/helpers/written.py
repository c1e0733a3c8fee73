"""A tiny model with a chat template that writes text."""

import copy

from helpers.text_tokenizers import byte_level
from helpers.tiny import tiny_llama

from treespec.training.text.batch import Writing

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


END = 2  # </s>


def chat_tokenizer():
    tokenizer = copy.deepcopy(byte_level(400))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


TOKENIZER = chat_tokenizer()


TARGET = tiny_llama(vocab_size=len(TOKENIZER), seed=5, eos_token_id=END)


WRITING = Writing(
    message_temperature=1.5, temperatures=(0.0, 1.0), max_message=6, max_length=30, batch_size=8, num_candidates=3
)


def spell(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def split(texts):
    lengths = texts.lengths.tolist()
    return list(zip(texts.tokens.split(lengths), texts.top.split(lengths), strict=True))
