"""Marks on real sockets: found, proven, put, read back, changed live, and never on anybody else's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from distributed.twin import trainer
from lightning_prio import PrioDDPStrategy, marks
from lightning_prio.lanes import LaneSet
from lightning_prio.marks import Connection, Mark, SocketMarks, bytes_moved, default_dscp, open_connections
from lightning_prio.nccl import environment_conflicts
from models import MLP
from ranks import RankPool


@contextmanager
def connected(family: int, host: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.bind((host, 0))
        listener.listen()
        client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        client.connect(listener.getsockname()[:2])
        server = stack.enter_context(listener.accept()[0])
        yield client, server


def connection_of(sock: socket.socket) -> Connection:
    return open_connections()[os.fstat(sock.fileno()).st_ino]


def carried(sock: socket.socket) -> tuple[int, int]:
    """TOS byte and socket priority, read without our code."""
    if sock.family == socket.AF_INET6:
        tos = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
    else:
        tos = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
    return tos, sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_level_is_put_on_a_socket_and_read_back(family: int, host: str) -> None:
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    marker = SocketMarks([0, 34, 46])
    with connected(family, host) as (client, server):
        connection = connection_of(client)
        assert connection.peer == server.getsockname()[:2]
        # DSCP 34 is TOS 136, DSCP 46 is TOS 184; the kernel's own table would make of these priorities 0 and 4
        for level, expected in ((1, (136, 6)), (2, (184, 6)), (0, (0, 0)), (2, (184, 6))):
            marker.put([connection], marker.mark_of(level))
            assert carried(client) == expected
            assert marker.read([connection]) == [Mark((0, 34, 46)[level], expected[1])]
        assert carried(server) == (0, 0)
        client.sendall(b"still in order")
        assert server.recv(100) == b"still in order"


def test_ipv4_inside_ipv6_is_marked_too() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen()
        client = stack.enter_context(socket.create_connection(("127.0.0.1", listener.getsockname()[1])))
        server = stack.enter_context(listener.accept()[0])
        assert server.family == socket.AF_INET6
        marker = SocketMarks([0, 34])
        connection = connection_of(server)
        marker.put([connection], marker.mark_of(1))
        assert server.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 136  # what goes out is IPv4
        assert marker.read([connection]) == [Mark(34, 6)]
        assert carried(client) == (0, 0)


def test_a_descriptor_given_to_another_socket_is_not_touched() -> None:
    """Descriptors are reused at once: the number that was a lane's may be a logger's by now."""
    marker = SocketMarks([0, 34])
    with connected(socket.AF_INET, "127.0.0.1") as (client, _), connected(socket.AF_INET, "127.0.0.1") as (other, _):
        connection = connection_of(client)
        os.dup2(other.fileno(), client.fileno())
        marker.put([connection], marker.mark_of(1))
        assert carried(other) == (0, 0)
        assert marker.read([connection]) == [None]
        assert bytes_moved(connection) == 0


def test_a_closed_connection_is_left_out() -> None:
    marker = SocketMarks([0, 34])
    with connected(socket.AF_INET, "127.0.0.1") as (client, _):
        connection = connection_of(client)
        client.close()
        marker.put([connection], marker.mark_of(1))
        assert marker.read([connection]) == [None]


def test_bytes_moved_counts_both_directions() -> None:
    with connected(socket.AF_INET, "127.0.0.1") as (client, server):
        connection = connection_of(client)
        before = bytes_moved(connection)
        client.sendall(b"x" * 1000)
        assert len(server.recv(1000, socket.MSG_WAITALL)) == 1000
        server.sendall(b"x" * 10)
        assert len(client.recv(10, socket.MSG_WAITALL)) == 10
        assert bytes_moved(connection) - before == 1010


@pytest.mark.parametrize(
    ("num_levels", "expected"),
    [(2, [0, 34]), (3, [0, 34, 46]), (4, [0, 26, 34, 46]), (6, [0, 10, 18, 26, 34, 46])],
)
def test_default_marks(num_levels: int, expected: list[int]) -> None:
    assert default_dscp(num_levels) == expected


@pytest.mark.parametrize("dscp", [[0], [0, 34, 46], [0, 64], [0, -1], [0, 1.5], "ef", 34])
def test_bad_dscp_is_named(dscp: Any) -> None:
    with pytest.raises(ValueError, match="dscp"):
        PrioDDPStrategy(dscp=dscp)


def test_more_levels_than_default_marks() -> None:
    with pytest.raises(ValueError, match=r"num_levels=7 .* dscp=\[\.\.\.\]"):
        PrioDDPStrategy(num_levels=7)
    PrioDDPStrategy(num_levels=7, dscp=None)
    PrioDDPStrategy(num_levels=7, dscp=[0, 8, 16, 24, 32, 40, 48])


def test_marks_can_be_switched_off() -> None:
    assert PrioDDPStrategy(dscp=None)._dscp is None
    assert PrioDDPStrategy()._dscp == [0, 34]


def make(marker: SocketMarks | None, num_levels: int = 3) -> LaneSet:
    return LaneSet.create(
        backend="gloo", num_groups=2, num_levels=num_levels, timeout=timedelta(seconds=20), marker=marker
    )


def marks_by_lane(rank: int) -> list[dict[str, set[Any]]]:
    lanes = make(SocketMarks([0, 34, 46]))
    seen = []
    for levels in ((0, 0), (0, 1), (1, 2), (0, 0)):
        lanes.set_levels(levels)
        dist.all_reduce(torch.ones(1000), group=lanes.lanes[0].process_group)
        seen.append({name: set(found) for name, found in lanes.read_marks().items()})
    problems = lanes.problems
    default = lanes.connections("default")
    lanes.close()
    seen.append({"default after close": set(SocketMarks([0]).read(default)), "problems": set(problems)})
    return seen


@pytest.mark.parametrize("pool", ["two_ranks", "three_ranks"])
def test_each_lane_carries_its_level_and_control_the_top(pool: str, request: pytest.FixtureRequest) -> None:
    ordinary, urgent, top = {Mark(0, 0)}, {Mark(34, 6)}, {Mark(46, 6)}
    for seen in request.getfixturevalue(pool).run(marks_by_lane):
        assert seen[:4] == [
            {"control": top, "default": top, "group0": first, "group1": second}
            for first, second in ((ordinary, ordinary), (ordinary, urgent), (urgent, top), (ordinary, ordinary))
        ]
        assert seen[4] == {"default after close": ordinary, "problems": set()}


def foreign_connections(rank: int) -> dict[str, Any]:
    """While lanes are made, a thread of each rank opens and uses a connection to the other rank's listener."""
    listener = socket.create_server(("127.0.0.1", 0))
    ports: list[Any] = [None, None]
    dist.all_gather_object(ports, listener.getsockname()[1])
    kept: list[socket.socket] = []
    made = threading.Event()
    new_group = dist.new_group

    def slow_new_group(*args: Any, **kwargs: Any) -> Any:
        group = new_group(*args, **kwargs)
        if not made.is_set():  # within the window in which the first group's connections are looked for
            thread = threading.Thread(target=open_one)
            thread.start()
            thread.join()
            made.set()
        return group

    def open_one() -> None:
        kept.append(socket.create_connection(("127.0.0.1", ports[1 - rank])))
        kept.append(listener.accept()[0])

    dist.new_group = slow_new_group
    try:
        lanes = make(SocketMarks([0, 34, 46]))
    finally:
        dist.new_group = new_group
    lanes.set_levels((2, 2))
    foreign = {os.fstat(sock.fileno()).st_ino for sock in kept}
    result = {
        "foreign": {carried(sock) for sock in kept},
        "num_foreign": len(foreign & open_connections().keys()),
        "taken": [name for name, found in lanes._connections.items() for one in found if one.inode in foreign],
        "marked": {name: len(found) for name, found in lanes._connections.items()},
    }
    lanes.close()
    for sock in (*kept, listener):
        sock.close()
    return result


def test_a_foreign_connection_opened_meanwhile_is_never_marked(two_ranks: RankPool) -> None:
    """Even one between the same two ranks, opened in the same moment: it does not carry the probe."""
    for result in two_ranks.run(foreign_connections):
        assert result["num_foreign"] == 2
        assert result["foreign"] == {(0, 0)}
        assert result["taken"] == []
        assert result["marked"] == {"default": 1, "control": 1, "group0": 1, "group1": 1}


def without_proc(rank: int) -> tuple[list[str], float]:
    def blind(kind: str) -> Any:
        raise psutil.AccessDenied

    original = psutil.Process.net_connections
    if rank == 1:
        psutil.Process.net_connections = lambda self, kind: blind(kind)
    try:
        lanes = make(SocketMarks([0, 34, 46]))
    finally:
        psutil.Process.net_connections = original
    lanes.set_levels((2, 1))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=lanes.lanes[1].process_group)
    problems = lanes.problems
    lanes.close()
    return problems, tensor.item()


def test_a_rank_that_cannot_look_costs_the_marks_but_not_the_lanes(two_ranks: RankPool) -> None:
    for problems, total in two_ranks.run(without_proc):
        assert total == 2.0
        assert any("rank 1: the connections of this process cannot be listed" in problem for problem in problems)
        assert any("rank 0: no connection of lane group0 could be proven" in problem for problem in problems)


def training_without_marks(rank: int, dscp: list[int] | None, blind: bool) -> tuple[list[str], dict[str, Any]]:
    import warnings

    def refuse() -> Any:
        raise OSError("no /proc here")

    seen: dict[str, Any] = {}

    class Look(MLP):
        def on_train_end(self) -> None:
            state = self.trainer.strategy.comm_state
            seen["marks"] = state.lanes.read_marks()
            seen["hook_calls"] = state.num_hook_calls

    from lightning_prio import proof

    original = proof.open_connections
    if blind:
        proof.open_connections = refuse
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = Look()
            strategy = PrioDDPStrategy(dscp=dscp)
            trainer(rank, strategy, max_steps=4).fit(model, model.loader(9, 2))
    finally:
        proof.open_connections = original
    return [str(warning.message) for warning in caught if "not marked" in str(warning.message)], seen


def test_training_goes_on_without_marks_with_one_warning(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(training_without_marks, [0, 34], True)
    (warning,) = first[0]  # on rank 0
    assert "rank 0: no /proc here; rank 1: no /proc here" in warning
    assert second[0] == []
    assert first[1]["hook_calls"] == second[1]["hook_calls"] == 7  # 1 bucket, then 2 in each of 3 steps


def test_dscp_none_looks_at_no_connection(two_ranks: RankPool) -> None:
    for warnings, seen in two_ranks.run(training_without_marks, None, True):
        assert warnings == []
        assert seen["marks"] == {}


@pytest.mark.parametrize(
    ("traffic_class", "environment", "expected"),
    [
        (None, {}, []),
        (None, {"NCCL_IB_TC": "3"}, []),
        ([0, 1], {"NCCL_IB_TC": "3"}, ["NCCL_IB_TC=3"]),
        ([0, 1], {"NCCL_IB_SL": "2", "NCCL_IB_TC": "3"}, ["NCCL_IB_TC=3", "NCCL_IB_SL=2"]),
        ([0, 1], {"NCCL_NET": "Socket"}, ["socket transport"]),
        ([0, 1], {"NCCL_IB_DISABLE": "1"}, ["socket transport"]),
        (None, {"TORCH_NCCL_HIGH_PRIORITY": "1"}, ["TORCH_NCCL_HIGH_PRIORITY"]),
        (None, {"TORCH_NCCL_HIGH_PRIORITY": "0"}, []),
        (None, {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, ["NCCL_LAUNCH_ORDER_IMPLICIT=0"]),
        (None, {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}, []),
    ],
)
def test_variables_that_undo_levels(
    traffic_class: list[int] | None, environment: dict[str, str], expected: list[str]
) -> None:
    conflicts = environment_conflicts(traffic_class, environment)
    assert len(conflicts) == len(expected)
    for conflict, words in zip(conflicts, expected, strict=True):
        assert words in conflict


def test_tcp_info_of_an_old_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(socket.AF_INET, "127.0.0.1") as (client, _):
        connection = connection_of(client)
        monkeypatch.setattr(marks, "_TCP_INFO_BYTES", 1000)
        with pytest.raises(OSError, match="does not count bytes sent"):
            bytes_moved(connection)
