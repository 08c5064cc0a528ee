"""The classes for `lightning.pytorch`'s Trainer, and their registration."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback  # noqa: TID251
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry  # noqa: TID251

from lightning_prio.callback import PrioritySchedulerMixin
from lightning_prio.strategy import PrioDDPMixin


class PriorityScheduler(PrioritySchedulerMixin, Callback):
    __doc__ = PrioritySchedulerMixin.__doc__

    namespace = "lightning.pytorch"
    counterpart = "lightning_prio.pytorch"


# The mixin is checked as if it stood on the other namespace's class.
class PrioDDPStrategy(PrioDDPMixin, DDPStrategy):  # type: ignore[misc]
    __doc__ = PrioDDPMixin.__doc__

    scheduler_class = PriorityScheduler
    namespace = "lightning.pytorch"
    counterpart = "lightning_prio.pytorch"


PrioDDPStrategy.register_strategies(StrategyRegistry)
