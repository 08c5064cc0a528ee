"""Lanes: the dedicated process groups that carry the groups' collectives. The only place that makes process groups.

[Note: one order on all ranks]
`new_group` is itself a collective on the default group's store: every rank must call it for the same groups in the
same order, or each waits for a group that the others have not begun. So all of them are made in one place, once, from
numbers that are equal on all ranks, and adapting never makes another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from lightning_prio.checks import check_integer

_MAX_TRAFFIC_CLASS = 255


@dataclass(frozen=True)
class Lane:
    """A process group that carries gradients.

    Attributes:
        name: What it is called in `group_desc`, in logs and in error messages.
        process_group: All ranks, with the strategy's timeout.
    """

    name: str
    process_group: dist.ProcessGroup


class LaneSet:
    """All process groups of one training run: the lanes, and one group for control collectives.

    With gloo there is one lane for each group, and a level is a property of the lane's connections. With NCCL the
    traffic class is fixed when a communicator is made, so there is one lane for each *level*, and a group uses that of
    its level.

    Use `create`; call `close` on every path.
    """

    def __init__(self, lanes: Sequence[Lane], control: dist.ProcessGroup, by_level: bool) -> None:
        self._lanes = tuple(lanes)
        self._by_level = by_level
        self.control = control

    @classmethod
    def create(
        cls,
        *,
        backend: str,
        num_groups: int,
        num_levels: int,
        timeout: timedelta | None,
        traffic_class: Sequence[int] | None = None,
    ) -> LaneSet:
        """Make the process groups. Collective: every rank must call it at the same place with the same arguments.

        Args:
            backend: Backend that carries the gradients, `"gloo"` or `"nccl"`.
            num_groups: Number of groups of the plan.
            num_levels: Number of levels.
            timeout: Timeout of every collective; `new_group` does not inherit the default group's.
            traffic_class: NCCL traffic class of each level.
        """
        made: list[dist.ProcessGroup] = []

        def new_group(name: str, backend: str, options: object | None = None) -> dist.ProcessGroup:
            group = dist.new_group(  # noqa: TID251 - this is the one place
                backend=backend, timeout=timeout, pg_options=options, group_desc=f"lightning_prio:{name}"
            )
            assert isinstance(group, dist.ProcessGroup), "every rank is a member of every lane"
            made.append(group)
            return group

        try:
            # On gloo whatever the gradients use: the agreed batch time is a number on the host, and must neither wait
            # for a stream nor queue behind gradients.
            control = new_group("control", "gloo")
            if backend == "nccl":
                lanes = [
                    Lane(name, new_group(name, backend, nccl_options(level, traffic_class, timeout)))
                    for level, name in enumerate(f"level{level}" for level in range(num_levels))
                ]
                return cls(lanes, control, by_level=True)
            lanes = [Lane(name, new_group(name, backend)) for name in (f"group{index}" for index in range(num_groups))]
            return cls(lanes, control, by_level=False)
        except BaseException:
            _destroy(made)
            raise

    def lane(self, group: int, level: int) -> Lane:
        """The lane for a group at a level. No rank may choose otherwise: see [Note: one plan] in `comm_hook`."""
        return self._lanes[level if self._by_level else group]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self._lanes

    def close(self) -> None:
        """Destroy the process groups. No collective, waits for no other rank; the default group stays."""
        _destroy([self.control, *(lane.process_group for lane in self._lanes)])
        self._lanes = ()


def _destroy(groups: Sequence[dist.ProcessGroup]) -> None:
    # The user may have destroyed the default group, and ours with it, before we are torn down.
    if not dist.is_initialized():
        return
    for group in groups:
        dist.destroy_process_group(group)


def check_traffic_class(traffic_class: Sequence[int] | None, num_levels: int) -> None:
    """Check a user's list of traffic classes.

    Raises:
        ValueError: Unless there is one integer from 0 to 255 for each level.
    """
    if traffic_class is None:
        return
    if not isinstance(traffic_class, (list, tuple)) or len(traffic_class) != num_levels:
        raise ValueError(
            f"traffic_class must have one entry for each of the {num_levels} levels (num_levels), got {traffic_class!r}"
        )
    for value in traffic_class:
        check_integer("traffic_class entries", value, at_least=0)
        if value > _MAX_TRAFFIC_CLASS:
            raise ValueError(
                f"traffic_class entries must be at most {_MAX_TRAFFIC_CLASS}, got {value} in {traffic_class!r}"
            )


def nccl_options(
    level: int, traffic_class: Sequence[int] | None, timeout: timedelta | None
) -> dist.ProcessGroupNCCL.Options:
    """Options of the communicator of one level.

    Args:
        level: 0 gets an ordinary stream, all others a high-priority one.
        traffic_class: The class of each level; None leaves it to NCCL and its environment.
        timeout: Timeout of its collectives.

    Raises:
        ValueError: If a traffic class is wanted and this version of torch or NCCL cannot set one.
    """
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = level > 0
    if timeout is not None:
        # Private, but without it `new_group` warns that its own timeout overrides the options' default.
        options._timeout = timeout
    # A communicator split from the default group with shared resources would inherit the default group's class.
    if hasattr(options.config, "split_share"):
        options.config.split_share = 0
    if traffic_class is not None:
        if not hasattr(options.config, "traffic_class"):
            raise ValueError(
                f"traffic_class={list(traffic_class)} needs a torch built with an NCCL that has traffic classes;"
                " leave traffic_class unset or upgrade torch"
            )
        options.config.traffic_class = traffic_class[level]
    return options
