"""PyTorch's DistributedDataParallel and DistributedSampler, for ddp_parity_test.cc to compare with.

Prints the parameters after each tenth of STEPS steps on two ranks over Gloo, as hexadecimal
floats, and the indices of samplers. Net and data are those of ddp_parity_net.h.
"""

import math
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data.distributed import DistributedSampler

RANKS = 2
STEPS = 100


def numbers(shape, seed):
    index = torch.arange(math.prod(shape), dtype=torch.float64)
    return (index * 0.37 + seed * 1.3).sin().reshape(shape)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.first = nn.Linear(64, 16)
        self.second = nn.Linear(16, 5)

    def forward(self, x):
        x = self.conv(x).tanh().flatten(1)
        return self.second(self.first(x).tanh()).log_softmax(1)


def train(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    net = Net().double()
    with torch.no_grad():
        for seed, parameter in enumerate(net.parameters()):
            parameter.copy_(numbers(parameter.shape, seed) * 0.3)
    ddp = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = numbers((8, 1, 6, 6), 1000 + step * 10 + rank)
        labels = (torch.arange(8) * 3 + step + rank) % 5
        nn.functional.nll_loss(ddp(x), labels).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % (STEPS // 10) == 0:
            for index, parameter in enumerate(net.parameters()):
                values = " ".join(value.hex() for value in parameter.flatten().tolist())
                print(f"parameter {step} {index} {values}")
    dist.destroy_process_group()


def sample():
    for length, replicas, seed, epoch, shuffle, drop_last in (
            (10, 3, 0, 0, True, False), (10, 3, 0, 0, True, True), (11, 4, 7, 2, True, False),
            (3, 8, 5, 1, True, False), (1000, 4, 123, 9, True, False), (7, 3, 0, 0, False, False),
            (2, 5, 1, 1, False, True), (60000, 2, 2 ** 33, 3, True, True)):
        for rank in range(replicas):
            sampler = DistributedSampler(range(length), replicas, rank, shuffle, seed, drop_last)
            sampler.set_epoch(epoch)
            indices = " ".join(map(str, sampler))
            print(f"sampler {length} {replicas} {rank} {seed} {epoch} {int(shuffle)} "
                  f"{int(drop_last)} {indices}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        child = os.fork()
        train(0 if child else 1, store)
        if not child:
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit("the other rank has failed")
    sample()
