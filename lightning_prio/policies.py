"""Policies: which groups one raise or one lowering touches.

Pure. A policy must depend on its arguments alone: it runs on every rank, and all must get the same levels.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lightning_prio.checks import check_choice


@runtime_checkable
class Policy(Protocol):
    """What a user's own policy has to offer.

    Both methods take the levels of all groups (head first, tail last) and the number of levels, and return the new
    levels: as many, each from 0 to `num_levels - 1`. Returning them unchanged means that nothing can be done.
    """

    def raise_levels(self, levels: tuple[int, ...], num_levels: int) -> tuple[int, ...]: ...

    def lower_levels(self, levels: tuple[int, ...], num_levels: int) -> tuple[int, ...]: ...


class TailFirst:
    """Fill one level after the other, from the tail to the head; lowering undoes that in reverse.

    With three groups and three levels a raise goes
    `000 -> 001 -> 011 -> 111 -> 112 -> 122 -> 222`, and a lowering the same way back.
    """

    def raise_levels(self, levels: tuple[int, ...], num_levels: int) -> tuple[int, ...]:
        bottom = min(levels)
        if bottom == num_levels - 1:
            return levels
        nearest_tail = max(index for index, level in enumerate(levels) if level == bottom)
        return _replaced(levels, nearest_tail, bottom + 1)

    def lower_levels(self, levels: tuple[int, ...], num_levels: int) -> tuple[int, ...]:
        top = max(levels)
        if top == 0:
            return levels
        return _replaced(levels, levels.index(top), top - 1)


def _replaced(levels: tuple[int, ...], index: int, level: int) -> tuple[int, ...]:
    return (*levels[:index], level, *levels[index + 1 :])


_BY_NAME = {"tail_first": TailFirst}


def resolve_policy(policy: str | Policy) -> Policy:
    """The policy of that name, or the object itself.

    Raises:
        ValueError: If there is none of that name, or the object lacks a method.
    """
    if isinstance(policy, str):
        check_choice("policy", policy, tuple(_BY_NAME))
        return _BY_NAME[policy]()
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise ValueError(
            f"policy must be one of {list(_BY_NAME)} or have raise_levels and lower_levels, got {policy!r}"
        )
    return policy
