"""A call's session, for tests of a control alone, which reads the facts in it."""

import torch

from treespec.protocols import History, Session
from treespec.sampling import NoProcessors


def begun(control, drafter="drafter", draft_share=0.0, is_sampling=False, **facts):
    """The control, at the start of a call with this drafter; `facts`: fields of its `Session`."""
    nobody = torch.zeros(0, 1, dtype=torch.int64)
    history, device = History(nobody, nobody.bool()), torch.device("cpu")
    session = Session(
        history, is_sampling, NoProcessors(), torch.Generator(), device, vocab_size=6, row_ids=[], **facts
    )
    control.begin(session, drafter, draft_share)
    return control
