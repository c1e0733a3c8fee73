"""Token trees, batches of them, and verdicts: the types that every other module uses.

Node 0 is the root: the last committed token, whose key/value rows are not cached yet. Parents come before children;
siblings are in *verification order*.
"""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.tree.arrays import IID as IID
    from treespec.tree.arrays import MIXED as MIXED
    from treespec.tree.arrays import PADDING_PARENT as PADDING_PARENT
    from treespec.tree.arrays import POINT_MASS as POINT_MASS
    from treespec.tree.arrays import ROOT_PARENT as ROOT_PARENT
    from treespec.tree.arrays import SELECTED as SELECTED
    from treespec.tree.arrays import WITHOUT_REPLACEMENT as WITHOUT_REPLACEMENT
    from treespec.tree.arrays import ancestor_mask as ancestor_mask
    from treespec.tree.arrays import pad_rows as pad_rows
    from treespec.tree.batch import TreeBatch as TreeBatch
    from treespec.tree.host_tree import HostTree as HostTree
    from treespec.tree.paths import Path as Path
    from treespec.tree.paths import Verdict as Verdict
    from treespec.tree.paths import parents_of_paths as parents_of_paths
    from treespec.tree.paths import parse_paths as parse_paths
    from treespec.tree.token_tree import TokenTree as TokenTree

__getattr__, __dir__, __all__ = lazy(__name__)
