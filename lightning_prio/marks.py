"""Marks: what makes a level real to the network, put on a lane's connections and read back.

A way for another transport is another class with the methods of `SocketMarks`; lanes and hook need not know.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import psutil

from lightning_prio.checks import check_integer

_MAX_DSCP = 63
# Assured forwarding 1 to 4 and expedited forwarding: all above best effort in the usual maps (RFC 4594), least first.
_RAISED_DSCP = (10, 18, 26, 34, 46)
# The only unprivileged socket priority that lands in pfifo_fast's first band; 1, 2, 3 and 5 land *below* best effort.
_RAISED_SOCKET_PRIORITY = 6
_ECN_BITS = 0x03  # the low bits of the TOS byte are not ours
# struct tcp_info (linux/tcp.h): 64-bit counters after 8 bytes, 24 words and two rates.
_TCP_INFO_BYTES = 208
_BYTES_RECEIVED_OFFSET, _BYTES_SENT_OFFSET = 128, 200


@dataclass(frozen=True)
class Connection:
    """A TCP connection of this process.

    Attributes:
        fd: Its file descriptor when it was found.
        inode: What identifies the socket for ever: a descriptor's number is given to another file once it is closed.
        local: Own address and port.
        peer: The other end's address and port.
    """

    fd: int
    inode: int
    local: tuple[str, int]
    peer: tuple[str, int]


@dataclass(frozen=True)
class Mark:
    """What a connection carries: the six DSCP bits of its packets, and the socket's priority in the host's queues."""

    dscp: int
    socket_priority: int


class Marker(Protocol):
    """How a level is put on connections, and read back."""

    def mark_of(self, level: int) -> Mark: ...

    def put(self, connections: Sequence[Connection], mark: Mark) -> None: ...

    def read(self, connections: Sequence[Connection]) -> list[Mark | None]: ...


def open_connections() -> dict[int, Connection]:
    """All established TCP connections of this process by inode.

    It only looks: no socket is touched.

    Raises:
        OSError: If the system does not say, for instance without `/proc`.
    """
    found: dict[int, Connection] = {}
    try:
        listed = psutil.Process().net_connections("tcp")
    except psutil.Error as error:
        raise OSError(f"the connections of this process cannot be listed: {error}") from error
    for entry in listed:
        if entry.fd < 0 or not entry.raddr:
            continue
        with contextlib.suppress(OSError):  # closed since it was listed
            inode = os.fstat(entry.fd).st_ino
            found[inode] = Connection(
                entry.fd, inode, (entry.laddr.ip, entry.laddr.port), (entry.raddr.ip, entry.raddr.port)
            )
    return found


@contextlib.contextmanager
def _borrowed(connection: Connection) -> Iterator[socket.socket | None]:
    """A descriptor of our own for the same socket; None if the socket has been closed since it was found.

    The duplicate is checked, not the original: between a check and the use the number could be given to another file.
    It is closed at once: held open, it would keep the peer from learning that the connection ended.
    """
    try:
        duplicate = os.dup(connection.fd)
    except OSError:
        yield None
        return
    if os.fstat(duplicate).st_ino != connection.inode:
        os.close(duplicate)
        yield None
        return
    with socket.socket(fileno=duplicate) as borrowed:
        yield borrowed


def bytes_moved(connection: Connection) -> int:
    """Bytes sent and received on a connection so far, as the kernel counts them; 0 if it has been closed."""
    with _borrowed(connection) as borrowed:
        if borrowed is None:
            return 0
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(info) < _TCP_INFO_BYTES:
        raise OSError(f"this kernel's TCP_INFO has {len(info)} bytes and does not count bytes sent (Linux 4.19 does)")
    (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED_OFFSET)
    (sent,) = struct.unpack_from("=Q", info, _BYTES_SENT_OFFSET)
    return int(received + sent)


class SocketMarks:
    """DSCP in the packets' TOS byte (traffic class on IPv6), and SO_PRIORITY on the host's own queues.

    Args:
        dscp: One value for each level, 0 to 63.
    """

    def __init__(self, dscp: Sequence[int]) -> None:
        self._dscp = tuple(dscp)

    def mark_of(self, level: int) -> Mark:
        """What is put on a connection at a level."""
        return Mark(self._dscp[level], 0 if level == 0 else _RAISED_SOCKET_PRIORITY)

    def put(self, connections: Sequence[Connection], mark: Mark) -> None:
        """Mark connections; it takes effect with the next packet. One that has been closed is left out.

        Raises:
            OSError: If the system refuses.
        """
        tos = mark.dscp << 2
        for connection in connections:
            with _borrowed(connection) as borrowed:
                if borrowed is None:
                    continue
                # The priority last: setting the TOS byte resets it from a table in the kernel which puts some urgent
                # classes below best effort.
                if borrowed.family == socket.AF_INET6:
                    borrowed.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
                if _speaks_ipv4(borrowed, connection):
                    borrowed.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
                borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, mark.socket_priority)

    def read(self, connections: Sequence[Connection]) -> list[Mark | None]:
        """What each connection really carries; None for one that has been closed."""
        marks: list[Mark | None] = []
        for connection in connections:
            with _borrowed(connection) as borrowed:
                if borrowed is None:
                    marks.append(None)
                    continue
                if _speaks_ipv4(borrowed, connection):
                    tos = borrowed.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
                else:
                    tos = borrowed.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
                priority = borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
                marks.append(Mark((tos & ~_ECN_BITS) >> 2, priority))
        return marks


def _speaks_ipv4(borrowed: socket.socket, connection: Connection) -> bool:
    return borrowed.family == socket.AF_INET or connection.peer[0].startswith("::ffff:")


def default_dscp(num_levels: int) -> list[int]:
    """DSCP of each level where the user names none: best effort, then the most urgent of the usual classes.

    Raises:
        ValueError: If there are more levels than usual classes.
    """
    if num_levels > len(_RAISED_DSCP) + 1:
        raise ValueError(
            f"num_levels={num_levels} is more than the {len(_RAISED_DSCP) + 1} that have a default mark; name the DSCP"
            " of each level with dscp=[...], or dscp=None for none"
        )
    # Expedited forwarding last and only from three levels on: networks often police it to a small share of a link.
    raised = _RAISED_DSCP[:-1] if num_levels == 2 else _RAISED_DSCP
    return [0, *raised[len(raised) - (num_levels - 1) :]]


def check_dscp(dscp: Sequence[int], num_levels: int) -> None:
    """Check a user's list of DSCP values.

    Raises:
        ValueError: Unless there is one integer from 0 to 63 for each level.
    """
    if not isinstance(dscp, (list, tuple)) or len(dscp) != num_levels:
        raise ValueError(f"dscp must have one entry for each of the {num_levels} levels (num_levels), got {dscp!r}")
    for value in dscp:
        check_integer("dscp entries", value, at_least=0)
        if value > _MAX_DSCP:
            raise ValueError(f"dscp entries must be at most {_MAX_DSCP}, got {value} in {dscp!r}")
