"""The target writes texts of all kinds by turns, one batch after the other, into a `corpus`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from recipes.smollm2_head import further
from recipes.smollm2_head.build import build, build_talk
from recipes.smollm2_head.corpus import Text, append, is_looping, read_corpus, split_texts
from recipes.smollm2_head.openings import build_openings
from treespec.cpu import prepack_linears
from treespec.hf.models.make_scorer import make_scorer
from treespec.training.text.batch import Message, Writing, write_batch
from treespec.training.text.chat import chat_turns, end_tokens

SEEDS = 2**31
SHORTEST_SOURCE = 200
"""Characters of an answer that is worth a task."""
MAX_MESSAGE = 160
"""Tokens of a message that the target finishes."""


class Writer:
    """Writes batches, the kind with the fewest texts first; the same corpus gives the same next batch.

    Args:
        folder: of the corpus.
        batch_size: texts of a batch.
        length: the longest text in tokens; half as much again where it holds earlier ones.
    """

    def __init__(self, model: Any, tokenizer: Any, folder: Path, batch_size: int = 64, length: int = 512) -> None:
        self._model = model
        self._scorer = make_scorer(model)
        self._tokenizer = tokenizer
        self._ends = end_tokens(model, tokenizer)
        self._turns = chat_turns(tokenizer)
        self._folder = folder
        self._texts = read_corpus(folder)
        self._size = batch_size
        self._short = Writing(batch_size=batch_size, max_message=MAX_MESSAGE, max_length=length, num_candidates=1)
        longer = length + length // 2
        self._long = Writing(batch_size=batch_size, max_message=longer, max_length=longer, num_candidates=1)
        self._makers: dict[str, Callable[[Random], list[Message]]] = {
            "tasks": lambda rng: self._given(build(batch_size, rng.randrange(SEEDS))),
            "talk": lambda rng: self._given(build_talk(batch_size, rng.randrange(SEEDS))),
            "openings": lambda rng: self._opened(build_openings(batch_size, rng.randrange(SEEDS))),
            "languages": lambda rng: self._opened([further.language(rng) for _ in range(batch_size)]),
            "turns": self._further_turns,
            "sources": self._over_sources,
        }

    def write(self) -> list[Text]:
        """Write one batch and add it to the corpus."""
        number = len(self._texts)
        kind = min(self._makers, key=lambda each: sum(text.kind == each for text in self._texts))
        messages = self._makers[kind](Random(f"{kind} {number}"))
        writing = self._long if kind in ("turns", "sources") else self._short
        with prepack_linears(self._model, self._size):
            texts = write_batch(self._scorer, self._turns, self._ends, messages, writing, number, is_enough=is_looping)
        found = split_texts(texts, kind)
        append(self._folder, found)
        self._texts += found
        return found

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def _given(self, messages: Sequence[str]) -> list[Message]:
        return [Message(self._ids(message), is_open=False) for message in messages]

    def _opened(self, messages: Sequence[str]) -> list[Message]:
        return [Message(self._ids(message)) for message in messages]

    def _further_turns(self, rng: Random) -> list[Message]:
        """Follow-ups to finished conversations that leave room for an answer."""
        room = self._short.max_length * 3 // 4
        known = self._to_train()
        ended = [text for text in known if text.tokens[-1] in self._ends and len(text.tokens) <= room] or known
        next_turn = self._next_turn()
        messages = []
        for text in rng.sample(ended, min(self._size, len(ended))):
            asked = further.follow_up(rng)
            before = text.tokens[len(self._turns.opening) : -1].tolist()
            messages.append(Message([*before, *self._ids(next_turn + asked)], further.is_open(asked)))
        return messages

    def _next_turn(self) -> str:
        """What the chat template has between an answer and the next message."""
        roles = [("user", "ONE"), ("assistant", "ANSWER"), ("user", "TWO")]
        turns = [{"role": role, "content": content} for role, content in roles]
        chat = str(self._tokenizer.apply_chat_template(turns, tokenize=False))
        return chat.partition("ANSWER")[2].partition("TWO")[0]

    def _over_sources(self, rng: Random) -> list[Message]:
        """Tasks over earlier answers."""
        known = self._to_train()
        answers = [self._answer(text) for text in rng.sample(known, min(4 * self._size, len(known)))]
        sources = [answer for answer in answers if len(answer) > SHORTEST_SOURCE] or answers
        return self._given([further.task(rng, sources) for _ in range(self._size)])

    def _answer(self, text: Text) -> str:
        """The last answer of a conversation."""
        is_ended = int(text.tokens[-1]) in self._ends
        chat = str(self._tokenizer.decode(text.tokens[: len(text.tokens) - is_ended].tolist()))
        return chat.rpartition(str(self._tokenizer.decode(self._turns.reply)))[2].strip()

    def _to_train(self) -> list[Text]:
        return [text for text in self._texts if not text.is_held_out]
