"""The classes for `pytorch_lightning`'s Trainer, and their registration."""

from __future__ import annotations

from pytorch_lightning.callbacks import Callback  # noqa: TID251
from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry  # noqa: TID251

from lightning_prio.callback import PrioritySchedulerMixin
from lightning_prio.strategy import PrioDDPMixin


class PriorityScheduler(PrioritySchedulerMixin, Callback):
    __doc__ = PrioritySchedulerMixin.__doc__

    namespace = "pytorch_lightning"
    counterpart = "lightning_prio.lightning"


class PrioDDPStrategy(PrioDDPMixin, DDPStrategy):
    __doc__ = PrioDDPMixin.__doc__

    scheduler_class = PriorityScheduler
    namespace = "pytorch_lightning"
    counterpart = "lightning_prio.lightning"


PrioDDPStrategy.register_strategies(StrategyRegistry)
