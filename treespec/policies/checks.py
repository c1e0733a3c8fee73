"""Checks of the options that policies and drafters share."""

from treespec.errors import ConfigError

AUTO = "auto"
CHILDREN = (AUTO, "selected", "iid", "without_replacement", "mixed")


def check_children(children: str, allowed: tuple[str, ...] = CHILDREN) -> str:
    """Raises: ConfigError, unless `children` is one of `allowed`."""
    if children not in allowed:
        raise ConfigError(f"children must be one of {', '.join(allowed)}, got {children!r}")
    return children


def check_count(name: str, value: int) -> int:
    """Raises: ConfigError, unless `value` is a positive int."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a positive int, got {value!r}")
    return value
