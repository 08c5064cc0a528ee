"""Prioritised gradient communication for PyTorch Lightning on shared networks.

Importing the package registers `strategy="prio_ddp"` and its variants with `pytorch_lightning`, and with
`lightning.pytorch` where that is installed: a Trainer resolves a strategy's name before anything else could register
it.
"""

from importlib.util import find_spec

from lightning_prio.controller import Event, PriorityController
from lightning_prio.groups import Grouping, TaskGroup
from lightning_prio.plan import Plan
from lightning_prio.policies import Policy, TailFirst
from lightning_prio.pytorch import PrioDDPStrategy, PriorityScheduler
from lightning_prio.tasks import GradientTask
from lightning_prio.version import __version__

if find_spec("lightning") is not None:
    import lightning_prio.lightning  # noqa: F401 - registers with the second namespace

__all__ = [
    "Event",
    "GradientTask",
    "Grouping",
    "Plan",
    "Policy",
    "PrioDDPStrategy",
    "PriorityController",
    "PriorityScheduler",
    "TailFirst",
    "TaskGroup",
    "__version__",
]
