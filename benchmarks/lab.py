"""A shared link on one machine: rank hosts in network namespaces, two racks, one shaped trunk. Linux, root, no torch.

    rack 0: rank 0 of every job --- bridge ==[ trunk, shaped at both ends ]== bridge --- rank 1 of every job: rack 1

Each end of the trunk is one `htb` class of the link's rate with a leaf for each (job, level): a small guaranteed rate,
the link as ceiling, strict priority between levels, and equal shares for the jobs of one level. A packet's job is known
by its source address, its level by its DSCP. Everything lies in namespaces of the lab's own, so nothing of it is seen
from outside and all of it goes away with them.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

INTERFACE = "eth0"
"""The interface of every rank host."""
DEFAULT_DSCP = (0, 34, 46)
"""The code point of each level, lowest level first; all others count as level 0."""

_NUM_RACKS = 2
_ECN_MASK = 0xFC
_QUEUE_PACKETS = 60
# Giant segments would make the short queues long, and a queue's turn a burst.
_GSO_MAX_BYTES, _GSO_MAX_SEGMENTS = 6200, 4
_GUARANTEED_SHARE = 0.01  # of the link, for each leaf: enough for a connection to live, too little to disturb
_BURST_SECONDS = 0.001  # what a class may send at once: the kernel's timers are late by less
_TIMEOUT_SECONDS = 20.0
_serial_numbers = itertools.count()


class LabError(RuntimeError):
    """A command of the lab failed; the message has it and what it said."""


@dataclass(frozen=True)
class Host:
    """One rank of one job.

    Attributes:
        job: Index of the job.
        rank: Rank in the job, and the rack in which it stands.
        namespace: Name of its network namespace.
        address: Its IPv4 address.
    """

    job: int
    rank: int
    namespace: str
    address: str


class Lab:
    """The network, as a context manager: built on entering, and gone on leaving with all that ran in it.

    Args:
        num_jobs: Number of jobs, each of two ranks.
        rate_mbit: Rate of the trunk in Mbit/s, each way.
        dscp: Code point of each level, lowest level first.
    """

    def __init__(self, num_jobs: int, rate_mbit: float = 200.0, dscp: Sequence[int] = DEFAULT_DSCP) -> None:
        if not 1 <= num_jobs <= 16:
            raise ValueError(f"num_jobs must be from 1 to 16, got {num_jobs}")
        if not rate_mbit > 0:
            raise ValueError(f"rate_mbit must be above 0 Mbit/s, got {rate_mbit}")
        if not 1 <= len(dscp) <= 8 or any(not 0 <= value <= 63 for value in dscp):
            raise ValueError(f"dscp must be one to eight code points from 0 to 63, got {dscp!r}")
        self.num_jobs, self.rate_mbit, self.dscp = num_jobs, float(rate_mbit), tuple(dscp)
        prefix = f"prio-lab-{os.getpid()}-{next(_serial_numbers)}"
        self._fabric = f"{prefix}-fabric"
        self.hosts = tuple(
            tuple(Host(job, rank, f"{prefix}-job{job}-rank{rank}", f"10.88.{job}.{rank + 1}") for rank in range(2))
            for job in range(num_jobs)
        )
        self._namespaces: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Lab:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- use

    def run(
        self, host: Host, argv: Sequence[str], env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host; whatever of it is left is killed when the lab closes.

        Args:
            host: Where.
            argv: The command.
            env: Variables in addition to this process's own.
            log: File for what it prints; nowhere by default.
        """
        with open(os.devnull if log is None else log, "ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", host.namespace, *argv],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        self._processes.append(process)
        return process

    def counters(self) -> dict[tuple[int, int], int]:
        """Bytes sent since the lab was built per (job, level), both ways together."""
        sent = dict.fromkeys(itertools.product(range(self.num_jobs), range(len(self.dscp))), 0)
        for rack in range(_NUM_RACKS):
            by_class = self._class_bytes(rack)
            for job, level in sent:
                sent[job, level] += by_class[_leaf(job, level)]
        return sent

    def trunk_bytes(self) -> tuple[int, int]:
        """Bytes sent over the trunk since the lab was built: from rack 0 to rack 1, and from rack 1 to rack 0."""
        return self._class_bytes(0)[_ROOT], self._class_bytes(1)[_ROOT]

    def set_trunk(self, up: bool) -> None:
        """Plug the trunk in, or out."""
        for rack in range(_NUM_RACKS):
            _call("ip", "-n", self._fabric, "link", "set", f"trunk{rack}", "up" if up else "down")

    def close(self) -> None:
        """Kill what runs in the lab and remove it. May be called twice."""
        # A second Ctrl-C must not leave half of it behind; it is delivered when this is over.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            for namespace in self._namespaces:
                _kill_all_in(namespace)
            for process in self._processes:
                process.kill()  # one that has not entered its namespace yet
                process.wait(_TIMEOUT_SECONDS)
            # The hosts first: the fabric's ends of their cables go with them.
            for namespace in reversed(self._namespaces):
                subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=_TIMEOUT_SECONDS)
            self._namespaces.clear()
            self._processes.clear()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    # -- building

    def _build(self) -> None:
        self._add_namespace(self._fabric)
        fabric = ("ip", "-n", self._fabric, "link")
        _call(*fabric, "add", "trunk0", "type", "veth", "peer", "name", "trunk1")
        for rack in range(_NUM_RACKS):
            # No spanning tree and no multicast snooping: the bridge forwards at once and says nothing by itself.
            _call(*fabric, "add", f"rack{rack}", "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
            self._start(f"rack{rack}")
            self._start(f"trunk{rack}", "master", f"rack{rack}")
            self._shape(rack)
        for job, rank in itertools.product(range(self.num_jobs), range(_NUM_RACKS)):
            self._add_host(self.hosts[job][rank])

    def _add_namespace(self, name: str) -> None:
        self._namespaces.append(name)
        _call("ip", "netns", "add", name)
        _call("ip", "-n", name, "link", "set", "lo", "up")

    def _start(self, device: str, *settings: str) -> None:
        # addrgenmode none: no IPv6, so no chatter of neighbour discovery on the trunk.
        _call("ip", "-n", self._fabric, "link", "set", device, "addrgenmode", "none", *settings)
        _call("ip", "-n", self._fabric, "link", "set", device, "up")

    def _add_host(self, host: Host) -> None:
        self._add_namespace(host.namespace)
        cable = f"job{host.job}rank{host.rank}"
        there = ["netns", host.namespace]
        _call("ip", "-n", self._fabric, "link", "add", cable, "type", "veth", "peer", "name", INTERFACE, *there)
        self._start(cable, "master", f"rack{host.rank}")
        inside = ("ip", "-n", host.namespace)
        sizes = ["gso_max_size", str(_GSO_MAX_BYTES), "gso_max_segs", str(_GSO_MAX_SEGMENTS)]
        _call(*inside, "link", "set", "dev", INTERFACE, "addrgenmode", "none", *sizes)
        _call(*inside, "address", "add", f"{host.address}/16", "dev", INTERFACE)
        _call(*inside, "link", "set", INTERFACE, "up")

    def _shape(self, rack: int) -> None:
        """Queues and filters of one end of the trunk."""

        def tc(what: str, *arguments: str) -> None:
            _call("tc", "-n", self._fabric, what, "add", "dev", f"trunk{rack}", *arguments)

        link_bits = int(self.rate_mbit * 1e6)
        burst = str(max(int(link_bits / 8 * _BURST_SECONDS), 2 * _GSO_MAX_BYTES))
        sizes = ("burst", burst, "cburst", burst, "quantum", str(_GSO_MAX_BYTES))
        root, ceiling = f"1:{_ROOT}", ("ceil", f"{link_bits}bit")
        guaranteed = ("rate", f"{max(int(link_bits * _GUARANTEED_SHARE), 8000)}bit")
        tc("qdisc", "root", "handle", "1:", "htb", "default", _OTHER)
        tc("class", "parent", "1:", "classid", root, "htb", "rate", f"{link_bits}bit", *ceiling, *sizes)
        tc("class", "parent", root, "classid", f"1:{_OTHER}", "htb", *guaranteed, *ceiling, "prio", "0", *sizes)  # ARP
        for job, level in itertools.product(range(self.num_jobs), range(len(self.dscp))):
            leaf = f"1:{_leaf(job, level)}"
            urgency = ("prio", str(len(self.dscp) - 1 - level))  # 0 is served first
            tc("class", "parent", root, "classid", leaf, "htb", *guaranteed, *ceiling, *urgency, *sizes)
            tc("qdisc", "parent", leaf, "pfifo", "limit", str(_QUEUE_PACKETS))
            match = ["match", "ip", "src", f"{self.hosts[job][rack].address}/32"]
            if level > 0:
                match += ["match", "ip", "dsfield", hex(self.dscp[level] << 2), hex(_ECN_MASK)]
            order = ("prio", "2" if level == 0 else "1")  # level 0 takes what no mark has claimed
            tc("filter", "parent", "1:", "protocol", "ip", *order, "u32", *match, "flowid", leaf)

    def _class_bytes(self, rack: int) -> dict[str, int]:
        """Bytes sent by each class of one end of the trunk, by its minor number in hexadecimal."""
        text = _call("tc", "-n", self._fabric, "-s", "class", "show", "dev", f"trunk{rack}")
        return {
            minor: int(sent) for minor, sent in re.findall(r"^class htb 1:(\w+) .*\n\s*Sent (\d+) bytes", text, re.M)
        }


_ROOT, _OTHER = "1", "2"


def _leaf(job: int, level: int) -> str:
    return f"{(job + 1) * 16 + level:x}"


def _call(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def _kill_all_in(namespace: str) -> None:
    # More than once: a process may be starting another.
    for _ in range(5):
        listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, timeout=10)
        pids = [int(pid) for pid in listed.stdout.split()]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def missing() -> list[str]:
    """Why the lab cannot run here, one reason each; empty if it can. Tries it out, with the smallest lab."""
    if not sys.platform.startswith("linux"):
        return [f"it needs Linux's network namespaces, this is {sys.platform}"]
    reasons = [f"there is no `{tool}` command (iproute2)" for tool in ("ip", "tc") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        reasons.append("it needs root, to make network namespaces")
    if not reasons:
        try:
            with Lab(1):
                pass
        except (LabError, subprocess.TimeoutExpired) as error:
            reasons.append(f"the kernel lacks something (namespaces, veth, bridge, htb, pfifo or u32): {error}")
    return reasons
