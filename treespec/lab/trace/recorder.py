"""`Recorder`: what the engine shows a trace during one call."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from treespec.engine import stats
from treespec.engine.observer import Observer, StepRecord, VerifiedTrees
from treespec.lab.rules import traced_rule
from treespec.lab.trace.contents import distributions_of, short, tree_records
from treespec.lab.trace.file import TraceFile
from treespec.policies.control.contract import Choice
from treespec.protocols import PathProcessors
from treespec.sampling import NoProcessors
from treespec.tree.transfer import WAITS
from treespec.verification import resolve

UNFINISHED = "\ufffd"
"""The replacement character, to which tokenizers decode the first bytes of a character."""


class TimedProcessors:
    """The caller's logits processors; `seconds` grows by the time that they take."""

    def __init__(self, processors: PathProcessors) -> None:
        self._processors, self.seconds = processors, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processors, name)

    def __call__(self, ids: Tensor, logits: Tensor, row: int) -> Tensor:
        start = stats.perf_counter()
        scores = self._processors(ids, logits, row)
        self.seconds += stats.perf_counter() - start
        return scores


class Recorder(Observer):
    """Writes one call's steps; a context that begins and ends the call in the file.

    Args:
        file: where to.
        about: what describes the call, see `TracedCall`.
        drafter: asked which of its parts proposed a node, if it has `proposers` as `Merge` has.
        tokenizer: for the texts of tokens; None leaves them out.
    """

    def __init__(self, file: TraceFile, about: Mapping[str, Any], drafter: Any, tokenizer: Any = None) -> None:
        self.file, self._timer = file, TimedProcessors(NoProcessors())
        self._about, self._drafter, self._texts = about, drafter, Texts(tokenizer)
        self._records: list[dict[str, Any]] = []
        self._distributions: dict[str, Tensor] | None = None
        self._num_steps = 0

    def __enter__(self) -> Self:
        self.file.begin(self._about)
        self._start_step()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.end("complete" if kind is None else f"{kind.__name__}: {error}")

    def around(self, processors: PathProcessors) -> PathProcessors:
        """The call's processors, timed."""
        self._timer = TimedProcessors(processors)
        timed: Any = self._timer
        return processors if type(processors) is NoProcessors else timed

    def on_verified(self, step: VerifiedTrees) -> None:
        """Read the step."""
        if not self.file.is_recording:
            return
        rows, probs = step.rows, step.probs
        start, waits, processing = stats.perf_counter(), WAITS.total(), self._timer.seconds
        about: dict[str, Any] = {"step": self._num_steps, "num_rows": len(rows)}
        about["rule"] = traced_rule(resolve(step.verification, probs.is_sampling, probs.trees))
        trees = tree_records(probs, step.verdicts, step.uniforms, self._drafter)
        self._records = [
            {**about, "row": row, "context": context, **tree}
            for row, context, tree in zip(rows, step.contexts, trees, strict=True)
        ]
        self._distributions = distributions_of(rows, probs) if self.file.has_distributions else None
        # Time and waits of recording do not count as the step's.
        self._step_began += stats.perf_counter() - start
        self._waits += WAITS.total() - waits
        self._timer.seconds = processing

    def on_step(self, step: StepRecord) -> None:
        """Write the step, now that it is committed; the first one's times are those of the prompt too."""
        if not self.file.is_recording:
            return
        wall = stats.perf_counter() - self._step_began
        unnamed = max(wall - sum(step.seconds.values()), 0.0)
        taken = step.seconds | {"processors": self._timer.seconds, "other": unnamed}
        after: dict[str, Any] = {"seconds": {phase: short(value) for phase, value in taken.items()}}
        after |= {"waits": WAITS.total() - self._waits, "choice": _choice_record(step.choice)}
        for record, tokens in zip(self._records, step.emitted, strict=True):
            record |= {"emitted": list(tokens), "pieces": self._texts.pieces(record["row"], tokens), **after}
            record["texts"] = self._texts.new([*record["tokens"], record["next_token"]])
        self.file.append(self._records, self._distributions)
        self._num_steps += 1
        self._start_step()

    def _start_step(self) -> None:
        self._step_began, self._waits = stats.perf_counter(), WAITS.total()
        self._timer.seconds = 0.0


def _choice_record(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    rates = {name: short(rate) for name, rate in choice.tokens_per_second.items()}
    return {"name": choice.name, "reason": choice.reason, "tokens_per_second": rates}


class Texts:
    """Decodes tokens one by one (labels of nodes), and texts as they grow.

    Without a tokenizer there is no text.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer
        self._known: set[int] = set()
        self._tails: dict[int, tuple[list[int], list[int]]] = {}

    def new(self, tokens: Sequence[int]) -> dict[int, str]:
        """The text of every token that was not asked for before."""
        if self._tokenizer is None:
            return {}
        fresh = dict.fromkeys(token for token in tokens if token not in self._known)
        self._known.update(fresh)
        return {token: self._decode([token]) for token in fresh}

    def pieces(self, row: int, tokens: Sequence[int]) -> list[str]:
        """Text that every token adds to the row's: nothing while a character of several tokens is unfinished.

        Decoded after the tokens of the last piece, for spaces may depend on what stands before.
        """
        if self._tokenizer is None:
            return []
        found = []
        for token in tokens:
            before, fresh = self._tails.get(row, ([], []))
            fresh = [*fresh, token]
            head, whole = self._decode(before), self._decode([*before, *fresh])
            if whole.endswith(UNFINISHED) and len(fresh) < 4:
                found.append("")
                self._tails[row] = (before, fresh)
            else:
                found.append(whole[len(head) :])
                self._tails[row] = (fresh, [])
        return found

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)) if tokens else ""
