"""The job of examples/parameter_server with one trainer, by PyTorch's RPC in Python.

pytorch_parameter_server.py [--images N] [--same-malloc]: told to keep memory as the example does.

Its clocks start and stop where those of the example do. The images come in another order.
"""

import argparse
import gzip
import json
import os
import pathlib
import signal
import socket
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.optim import DistributedOptimizer
from torch.nn import functional

from gloo_ddp import keep_freed_memory

DATA = pathlib.Path(__file__).resolve().parents[3] / "examples" / "mnist" / "data"
BATCH_SIZE, LEARNING_RATE, SEED = 32, 0.05, 1
LOOKS, LOOK_AT = 10, 1000  # times in a run, images
LIMIT_S = 900  # each process ends by then, whatever the other does


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)

    def forward(self, images):
        return self.conv2(torch.relu(self.conv1(images)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, maps):
        features = torch.max_pool2d(torch.relu(maps), 2).flatten(1)
        return torch.log_softmax(self.linear2(torch.relu(self.linear1(features))), 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions, self.classifier = Convolutions(), Classifier()

    def forward(self, images):
        return self.classifier(self.convolutions(images))

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def read(name, header):
    data = gzip.decompress((DATA / f"{name}-ubyte.gz").read_bytes())
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8)


def sample(images, labels, count):
    """Every n-th of them, so that there are `count`, or all where there are no more."""
    count = min(count, len(labels))
    step = len(labels) // count
    return images[:step * count:step], labels[:step * count:step]


def load(name, count):
    images = read(f"{name}-images-idx3", 16).view(-1, 1, 28, 28)
    labels = read(f"{name}-labels-idx1", 8).long()
    return sample(images.float().div_(255).sub_(0.1307).div_(0.3081), labels, count)


class Server:
    def __init__(self, images):
        self.steps = -(-images // BATCH_SIZE)
        self.test = load("t10k", images)
        self.net = Net()
        self.losses, self.shares_right, self.accuracies = [], [], []
        self.trainer_busy_s = 0

    def accuracy(self, count):
        images, labels = sample(*self.test, count)
        with torch.no_grad():
            right = sum(self.net(some).argmax(1).eq(answers).sum().item() for some, answers
                        in zip(images.split(LOOK_AT), labels.split(LOOK_AT)))
        return right / len(labels)


server = None


def share_net():
    return server.net


def trained(loss, right):
    step = len(server.losses)
    server.losses.append(loss)
    server.shares_right.append(right)
    if step % (server.steps // LOOKS + 1) == server.steps // LOOKS:
        server.accuracies.append(server.accuracy(LOOK_AT))


def finished(busy_s):
    server.trainer_busy_s = busy_s


def train(images, labels):
    net = rpc.remote("ps", share_net)
    optimizer = DistributedOptimizer(torch.optim.SGD, net.rpc_sync().parameter_rrefs(),
                                     lr=LEARNING_RATE)
    busy_before = time.process_time()
    for picked in torch.randperm(len(labels)).split(BATCH_SIZE):
        some, answers = images.index_select(0, picked), labels.index_select(0, picked)
        with dist_autograd.context() as context:
            scores = net.rpc_sync().forward(some)
            loss = functional.nll_loss(scores, answers)
            right = scores.argmax(1).eq(answers).double().mean().item()
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
            rpc.rpc_sync("ps", trained, args=(loss.item(), right))
    rpc.rpc_sync("ps", finished, args=(time.process_time() - busy_before,))


def serve(images):
    global server
    server = Server(images)
    busy_before = time.process_time()
    rpc.init_rpc("ps", rank=0, world_size=2)
    begun = time.perf_counter()
    rpc.shutdown()  # when the trainer has come to its end
    took_s = time.perf_counter() - begun
    busy_s = time.process_time() - busy_before + server.trainer_busy_s
    for case, unit, value in (("epoch batch 32", "samples/s", images / took_s),
                              ("epoch batch 32, processor time", "s", busy_s)):
        print(json.dumps({"case": case, "unit": unit, "value": value}), flush=True)
    print(f"accuracy on the test images {server.accuracy(images):.2%}", file=sys.stderr)


def leave_nothing_behind():
    """Of each process: torch has it interrupted when its parent is gone, also while it waits in C++."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.alarm(LIMIT_S)


def run(rank, images, same_malloc, port):
    leave_nothing_behind()
    if same_malloc:
        keep_freed_memory()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
                      TP_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if rank == 0:
        return serve(images)
    data = load("train", images)
    rpc.init_rpc("trainer1", rank=1, world_size=2)
    train(*data)
    rpc.shutdown()


if __name__ == "__main__":
    leave_nothing_behind()
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--same-malloc", action="store_true")
    asked = parser.parse_args()
    if not 1 <= asked.images <= 60_000:
        parser.error("--images is 1 to 60000")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(run, (asked.images, asked.same_malloc, port), nprocs=2)
