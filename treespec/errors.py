"""Everything treespec raises on purpose. Each message says what came, what was expected and what to do."""


class TreespecError(Exception):
    """Base class of every error that treespec raises on purpose."""


class InvalidTreeError(TreespecError, ValueError):
    """A token tree whose structure, shapes or draft distributions are not those of a drafted tree."""


class RuleMismatchError(TreespecError, ValueError):
    """A verification rule applied to a tree whose draft distributions it does not fit."""


class LogitsError(TreespecError, ValueError):
    """Logits from which no probability distribution can be made: NaN, +inf, or no token left with any mass."""


class VocabularyMismatchError(TreespecError, ValueError):
    """A draft model whose vocabulary is not the target model's."""


class UnsupportedModelError(TreespecError, ValueError):
    """A model, cache or attention implementation that cannot do what was asked of it."""


class UnsupportedModeError(TreespecError, ValueError):
    """A generation mode or option that speculation does not serve (beam search, for example)."""


class ContextFullError(TreespecError, ValueError):
    """No room is left in the model's context or in a cache of fixed size."""


class ConfigError(TreespecError, ValueError):
    """An option whose value is of the wrong type, out of range or unknown."""


class RanksDisagreeError(TreespecError, RuntimeError):
    """Processes that run one model together (tensor parallel) do not do the same, or one of them has stopped."""


class CheckpointError(TreespecError, ValueError):
    """A file of weights or tables that is missing, corrupt, of another shape, or in a format that is not read."""


class TraceError(TreespecError, ValueError):
    """A trace that is missing, empty, damaged or in a format that is not read, or lacks what a replay needs."""


class TreespecWarning(UserWarning):
    """A named fallback: treespec continues in another way than asked, and says so once."""
