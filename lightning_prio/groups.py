"""Groups: consecutive tasks that are adjusted together. Group 0 is the head, group N-1 the tail.

Pure: task sequences in, groups out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lightning_prio.checks import check_choice, check_integer, check_positive
from lightning_prio.tasks import GradientTask

GroupingScheme = Literal["ratio", "bytes"]
SmallRatioScheme = Literal["front_loaded", "triangular"]


@dataclass(frozen=True)
class TaskGroup:
    """Consecutive tasks that share a level.

    Attributes:
        index: Position in the sequence of groups, 0 = head.
        tasks: Never empty; in the order of the task sequence.
    """

    index: int
    tasks: tuple[GradientTask, ...]

    @property
    def num_bytes(self) -> int:
        return sum(task.num_bytes for task in self.tasks)


@dataclass(frozen=True)
class Grouping:
    """The rule that turns M tasks into N groups.

    Attributes:
        num_groups: N; cut to M where there are fewer tasks.
        scheme: `"ratio"`, by number of tasks: even parts if `M / N > ratio_threshold`, else `small_ratio_scheme`; or
            `"bytes"`: consecutive tasks such that the largest group is as small as can be.
        ratio_threshold: Tasks per group above which the parts are even.
        small_ratio_scheme: `"front_loaded"`: the first group takes `M // N + M % N` tasks, each other `M // N`; or
            `"triangular"`: counted from the tail 1, 2, 3, ... tasks, the first group takes what remains.

    Raises:
        ValueError: On a value out of range, naming the argument and the value.
    """

    num_groups: int = 4
    scheme: GroupingScheme = "ratio"
    ratio_threshold: float = 2.0
    small_ratio_scheme: SmallRatioScheme = "front_loaded"

    def __post_init__(self) -> None:
        check_integer("num_groups", self.num_groups, at_least=1)
        check_choice("grouping", self.scheme, get_args(GroupingScheme))
        check_choice("small_ratio_scheme", self.small_ratio_scheme, get_args(SmallRatioScheme))
        check_positive("ratio_threshold", self.ratio_threshold, "tasks per group")

    def apply(self, tasks: Sequence[GradientTask]) -> tuple[TaskGroup, ...]:
        """Cut a task sequence into groups; every task is in exactly one, the order stays, no group is empty."""
        if not tasks:
            return ()
        num_groups = min(self.num_groups, len(tasks))
        if self.scheme == "bytes":
            sizes = balanced_sizes([task.num_bytes for task in tasks], num_groups)
        elif len(tasks) / num_groups > self.ratio_threshold:
            sizes = even_sizes(len(tasks), num_groups)
        elif self.small_ratio_scheme == "front_loaded":
            sizes = front_loaded_sizes(len(tasks), num_groups)
        else:
            sizes = triangular_sizes(len(tasks), num_groups)
        assert sum(sizes) == len(tasks), (sizes, len(tasks))
        assert min(sizes) > 0, sizes
        groups, start = [], 0
        for index, size in enumerate(sizes):
            groups.append(TaskGroup(index, tuple(tasks[start : start + size])))
            start += size
        return tuple(groups)


def even_sizes(num_tasks: int, num_groups: int) -> list[int]:
    """Sizes that differ by at most one; the larger ones stand at the head, which backpropagation hides best."""
    quotient, remainder = divmod(num_tasks, num_groups)
    return [quotient + (index < remainder) for index in range(num_groups)]


def front_loaded_sizes(num_tasks: int, num_groups: int) -> list[int]:
    """The first group takes the remainder on top of its share."""
    quotient, remainder = divmod(num_tasks, num_groups)
    return [quotient + remainder] + [quotient] * (num_groups - 1)


def triangular_sizes(num_tasks: int, num_groups: int) -> list[int]:
    """1, 2, 3, ... tasks counted from the tail; the first group takes all that remain.

    Where the tasks do not suffice for the triangle, a group takes as many as leave one for each group before it.
    """
    from_tail: list[int] = []
    remaining = num_tasks
    for place in range(1, num_groups):
        num_groups_before = num_groups - place
        size = min(place, remaining - num_groups_before)
        from_tail.append(size)
        remaining -= size
    return [remaining, *reversed(from_tail)]


def balanced_sizes(num_bytes: Sequence[int], num_groups: int) -> list[int]:
    """Consecutive parts such that the largest has as few bytes as possible (the linear partition problem).

    The smallest sufficient capacity is found by bisection, as in "painter's partition"; all in integers, so that every
    rank gets the same answer.
    """
    low, high = max(num_bytes), sum(num_bytes)
    while low < high:
        middle = (low + high) // 2
        if len(_fill(num_bytes, middle)) <= num_groups:
            high = middle
        else:
            low = middle + 1
    sizes = _fill(num_bytes, low)
    # Fewer parts than asked for: halve the ones with most tasks, which makes no part larger.
    while len(sizes) < num_groups:
        index = max(range(len(sizes)), key=sizes.__getitem__)
        half = sizes[index] // 2
        sizes[index : index + 1] = [sizes[index] - half, half]
    return sizes


def _fill(num_bytes: Sequence[int], capacity: int) -> list[int]:
    """Sizes of the parts when each is filled from the head up to `capacity` bytes."""
    sizes, used = [0], 0
    for size in num_bytes:
        if used + size > capacity and sizes[-1]:
            sizes.append(0)
            used = 0
        sizes[-1] += 1
        used += size
    return sizes
