"""PyTorch's collectives over Gloo, for the same cases: gloo_collectives.py --world N."""

import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

SIZES = (("4 B", 1), ("4 KiB", 1 << 10), ("64 KiB", 16 << 10), ("1 MiB", 256 << 10),
         ("16 MiB", 4 << 20), ("64 MiB", 16 << 20))
OTHER = 256 << 10
MESSAGES = (("4 B", 1), ("64 KiB", 16 << 10), ("1 MiB", 256 << 10), ("64 MiB", 16 << 20))


def measure(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)

    def run(what, floats, work, halves=1):
        # A twentieth of the others' calls: Gloo is slow enough to be timed by fewer.
        times = min(max((128 << 20) // (20 * (floats * 4 + 1)), 4), 100)
        for _ in range(3):
            work()
        batches = []
        for _ in range(5):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(times):
                work()
            batches.append((time.perf_counter() - begin) / times * 1e6)
        if rank == 0:
            print(json.dumps({"case": f"{what} world {world}", "unit": "us",
                              "value": statistics.median(batches) / halves}), flush=True)

    for name, floats in SIZES:
        x = torch.zeros(floats)
        run(f"all_reduce {name}", floats, lambda: dist.all_reduce(x))
    one, everything, sent = torch.zeros(OTHER), torch.zeros(OTHER * world), torch.zeros(OTHER * world)
    run("broadcast 1 MiB", OTHER, lambda: dist.broadcast(one, 0))
    run("all_gather 1 MiB", OTHER, lambda: dist.all_gather_into_tensor(everything, one))
    run("reduce_scatter 1 MiB", OTHER, lambda: dist.reduce_scatter_tensor(one, everything))
    run("all_to_all 1 MiB", OTHER, lambda: dist.all_to_all_single(everything, sent))
    run("barrier", 0, dist.barrier)
    for name, floats in MESSAGES if world == 2 else ():
        x = torch.zeros(floats)

        def there_and_back(x=x):
            if rank == 0:
                dist.send(x, 1)
            dist.recv(x, 1 - rank)
            if rank == 1:
                dist.send(x, 0)

        run(f"send {name}", 2 * floats, there_and_back, halves=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    world = int(sys.argv[2])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(measure, (world, port), nprocs=world)
