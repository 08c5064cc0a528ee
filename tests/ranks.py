"""Run a function on several ranks, each in a process of its own, under a deadline.

Starting a process with torch and Lightning in it takes seconds, so a `RankPool` keeps its processes for many calls;
each call gets a fresh file store and a fresh default process group. After a failure or a missed deadline whatever is
left is killed and the next call starts new processes.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import Empty
from typing import Any

GROUP_TIMEOUT = timedelta(seconds=30)
DEADLINE_SECONDS = 120.0
_POLL_SECONDS = 0.2


class RanksFailed(AssertionError):
    """At least one rank raised, died or did not come back in time."""


class RankPool:
    """Worker processes for `world_size` ranks.

    Args:
        world_size: Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._calls: list[Any] = []
        self._results: Any = None

    def run(self, function: Callable[..., Any], *args: Any, deadline_seconds: float = DEADLINE_SECONDS) -> list[Any]:
        """Call `function(rank, *args)` on every rank, inside an initialised gloo process group.

        Args:
            function: A module-level function; it and its arguments and results are pickled.
            *args: Passed on.
            deadline_seconds: When to give up.

        Returns:
            The results, one per rank.

        Raises:
            RanksFailed: With the traceback of each failing rank, and the ranks that did not answer.
        """
        self._start()
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            for calls in self._calls:
                calls.put((function, args, store))
            results: dict[int, Any] = {}
            failures: dict[int, str] = {}
            deadline = time.monotonic() + deadline_seconds
            while len(results) + len(failures) < self.world_size and time.monotonic() < deadline:
                try:
                    rank, ok, value = self._results.get(timeout=_POLL_SECONDS)
                except Empty:
                    if any(not process.is_alive() for process in self._processes):
                        break
                    continue
                (results if ok else failures)[rank] = value
                if failures:  # the others may be waiting for this rank: give them a moment to say so, then end it
                    deadline = min(deadline, time.monotonic() + 5)
            if len(results) == self.world_size:
                return [results[rank] for rank in range(self.world_size)]
            silent = [
                f"rank {rank}: no answer, exit code {process.exitcode}"
                for rank, process in enumerate(self._processes)
                if rank not in results and rank not in failures
            ]
            self.close()
            raise RanksFailed("\n\n".join([*(f"rank {rank}:\n{text}" for rank, text in failures.items()), *silent]))

    def close(self) -> None:
        """Kill the worker processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(timeout=10)
        self._processes, self._calls = [], []

    def _start(self) -> None:
        if self._processes and all(process.is_alive() for process in self._processes):
            return
        self.close()
        self._results = self._context.Queue()
        self._calls = [self._context.SimpleQueue() for _ in range(self.world_size)]
        self._processes = [
            self._context.Process(
                target=_work, args=(rank, self.world_size, self._calls[rank], self._results), daemon=True
            )
            for rank in range(self.world_size)
        ]
        for process in self._processes:
            process.start()


def _work(rank: int, world_size: int, calls: Any, results: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        function, args, store = calls.get()
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=GROUP_TIMEOUT
            )
            results.put((rank, True, function(rank, *args)))
        except BaseException:
            results.put((rank, False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
