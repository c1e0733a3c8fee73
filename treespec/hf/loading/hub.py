"""Names on the Hugging Face hub, asked for once before files are."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

SECONDS = 10.0
"""How long the hub may take to answer."""


def hub_problem(name: str) -> str | None:
    """Why a name cannot be loaded from the hub, or None if it is a path, is in the cache, or the hub has it.

    The hub's client tries five times per file, for a minute and more in all, before it says that there is no network.
    """
    if Path(name).exists():
        return None
    try:
        if _is_cached(name):
            return None
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=SECONDS)
    except (HFValidationError, EntryNotFoundError):
        return None  # Another kind of path, or a repository without this file: the loader says what is missing.
    except RepositoryNotFoundError:
        return "there is no such folder, and no such public repository on the hub"
    except HfHubHTTPError:
        return None  # The hub is overloaded, or needs a token: its client tries again, or says what is missing.
    except (HTTPError, OSError) as error:
        reason = " ".join(str(error).split())
        return f"there is no such folder, it is not in the hub's cache, and the hub cannot be reached ({reason})"
    return None


def _is_cached(name: str) -> bool:
    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"), "snapshots")
    return folder.is_dir() and any(folder.iterdir())
