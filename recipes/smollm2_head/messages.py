"""The messages that the target answers, as ids: of all kinds, from templates, from openings, and from earlier texts."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from recipes.smollm2_head import further
from recipes.smollm2_head.build import build, build_talk
from recipes.smollm2_head.corpus import Text
from recipes.smollm2_head.openings import build_openings
from treespec.training.text.batch import Message
from treespec.training.text.chat import chat_turns, end_tokens

SEEDS = 2**31
SHORTEST_SOURCE = 200
"""Characters of an answer that is worth a task."""
FIRST_KINDS = ("tasks", "talk", "openings", "languages")
LATER_KINDS = ("turns", "sources")
"""Over texts that are there already."""


class Messages:
    """Messages of `FIRST_KINDS` and `LATER_KINDS`.

    Args:
        model: says which tokens end an answer.
        tokenizer: with a chat template.
        room: the longest text, in tokens, that gets a further turn.

    Attributes:
        turns: of the chat template.
        ends: ids that end an answer.
    """

    def __init__(self, model: Any, tokenizer: Any, room: int) -> None:
        self._tokenizer = tokenizer
        self._room = room
        self.turns, self.ends = chat_turns(tokenizer), end_tokens(model, tokenizer)

    def make(self, kind: str, count: int, rng: Random, texts: Sequence[Text] = ()) -> list[Message]:
        """About `count` messages of a kind; later kinds are over some of `texts`, those to train on."""
        if kind == "tasks":
            return self._messages(build(count, rng.randrange(SEEDS)))
        if kind == "talk":
            return self._messages(build_talk(count, rng.randrange(SEEDS)))
        if kind == "openings":
            return self._messages(build_openings(count, rng.randrange(SEEDS)), is_open=True)
        if kind == "languages":
            return self._messages([further.language(rng) for _ in range(count)], is_open=True)
        known = [text for text in texts if not text.is_held_out]
        return self._further_turns(known, count, rng) if kind == "turns" else self._over_sources(known, count, rng)

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def _messages(self, texts: Sequence[str], is_open: bool = False) -> list[Message]:
        return [Message(self._ids(text), is_open) for text in texts]

    def _further_turns(self, known: Sequence[Text], count: int, rng: Random) -> list[Message]:
        """Follow-ups to finished conversations that leave room for an answer."""
        ended = [text for text in known if text.tokens[-1] in self.ends and len(text.tokens) <= self._room]
        next_turn = self._next_turn()
        messages = []
        for text in rng.sample(ended or known, min(count, len(ended or known))):
            asked = further.follow_up(rng)
            before = text.tokens[len(self.turns.opening) : -1].tolist()
            messages.append(Message([*before, *self._ids(next_turn + asked)], further.is_open(asked)))
        return messages

    def _next_turn(self) -> str:
        """The chat template's text between an answer and the next message."""
        roles = [("user", "ONE"), ("assistant", "ANSWER"), ("user", "TWO")]
        turns = [{"role": role, "content": content} for role, content in roles]
        chat = str(self._tokenizer.apply_chat_template(turns, tokenize=False))
        return chat.partition("ANSWER")[2].partition("TWO")[0]

    def _over_sources(self, known: Sequence[Text], count: int, rng: Random) -> list[Message]:
        """Tasks over earlier answers."""
        answers = [self._answer(text) for text in rng.sample(known, min(4 * count, len(known)))]
        sources = [answer for answer in answers if len(answer) > SHORTEST_SOURCE] or answers
        return self._messages([further.task(rng, sources) for _ in range(count)])

    def _answer(self, text: Text) -> str:
        """The last answer of a conversation."""
        is_ended = int(text.tokens[-1]) in self.ends
        chat = str(self._tokenizer.decode(text.tokens[: len(text.tokens) - is_ended].tolist()))
        return chat.rpartition(str(self._tokenizer.decode(self.turns.reply)))[2].strip()
