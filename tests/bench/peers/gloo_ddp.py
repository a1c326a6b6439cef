"""PyTorch's DistributedDataParallel over Gloo, for the same cases.

gloo_ddp.py --net small|large [--same-malloc]: told to keep memory as farspan's programs tell it.
"""

import ctypes
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn import functional

RANKS = 2
SAME_MALLOC = ((-3, 1 << 30), (-1, -1), (-8, 1))  # as in c10d/base/freed_memory.cc


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.dropout2d, self.dropout = nn.Dropout2d(), nn.Dropout()
        self.linear1, self.linear2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, images):
        edges = functional.relu(functional.max_pool2d(self.conv1(images), 2))
        shapes = functional.relu(functional.max_pool2d(self.dropout2d(self.conv2(edges)), 2))
        features = self.dropout(functional.relu(self.linear1(shapes.flatten(1))))
        return functional.log_softmax(self.linear2(features), 1)


def large_net():
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                         nn.Linear(4096, 1000), nn.LogSoftmax(1))


def keep_freed_memory():
    for parameter, value in SAME_MALLOC:
        assert ctypes.CDLL(None).mallopt(parameter, value) == 1


def measure(rank, large, same_malloc, port):
    if same_malloc:
        keep_freed_memory()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    net = nn.parallel.DistributedDataParallel(large_net() if large else SmallNet())
    x = torch.randn(32, 1024) if large else torch.randn(64, 1, 28, 28)
    labels = torch.randint(1000 if large else 10, (len(x),))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)
    steps = 8 if large else 100

    def step():
        optimizer.zero_grad()
        functional.nll_loss(net(x), labels).backward()
        optimizer.step()

    for _ in range(3):
        step()
    rates = []
    for _ in range(5):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        rates.append(steps / (time.perf_counter() - begin))
    if rank == 0:
        names = (("step MNIST net world 2", "step MNIST net, same malloc world 2"),
                 ("step 25 M parameters world 2", "step 25 M parameters, same malloc world 2"))
        case = names[large][same_malloc]
        print(json.dumps({"case": case, "unit": "steps/s", "value": statistics.median(rates)}),
              flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    net, *options = sys.argv[2:]
    multiprocessing.spawn(measure, (net == "large", "--same-malloc" in options, port), nprocs=RANKS)
