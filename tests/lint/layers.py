"""Who may include whom: every #include must point to the same room or to one below it."""

import re

import sources

# From the ground up. A file belongs to the longest entry that its path starts with.
LAYERS = (
    "c10d/base",
    "c10d/net",
    "c10d/device",
    "c10d/streams",
    "c10d/transport",
    "c10d/store",
    "c10d/values",
    "c10d/group",
    "c10d/backends",
    "c10d/ddp",
    "c10d/init",  # the composition root of c10d
    "rpc/wire",
    "rpc/agent",
    "rpc/call",
    "rpc",
    "rpc/device",
    "rref",
    "autograd",
    "optim",
    "rpc/init",  # the composition root: the one room that looks up
)
SIBLINGS = {"c10d/backends", "c10d/ddp"}  # neither includes the other

# These must not see LibTorch, neither directly nor through a room that does.
WITHOUT_LIBTORCH = (
    "c10d/base/", "c10d/net/", "c10d/device/", "c10d/transport/", "c10d/store/", "rpc/wire/", "rpc/agent/",
    "c10d/ddp/bucket_plan", "c10d/ddp/reduction_progress",
    "rref/id.h", "rref/protocol", "autograd/pass", "autograd/ended_passes", "optim/step_gate")
GENERATED = re.compile(r"\.capnp\.h$")  # schemas know nothing of LibTorch

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def layer(path):
    inside = [room for room in LAYERS if path.startswith(room + "/")]
    return max(inside, key=len) if inside else None


def free_of_libtorch(path):
    return path.startswith(WITHOUT_LIBTORCH) or bool(GENERATED.search(path))


def complaint(path, quote, target):
    """What is wrong with an #include of target in the file path, or None."""
    own = layer(path)
    if own is None:
        return None  # tests and examples may include anything
    if quote == '"':
        return "write it as <farspan/...>"
    if not target.startswith("farspan/"):
        if free_of_libtorch(path) and re.match(r"(ATen|c10|torch|caffe2)/", target):
            return "this part of farspan must not see LibTorch"
        return None
    target = target.removeprefix("farspan/")
    other = layer(target)
    if other is None:
        return "no room has this file"
    if LAYERS.index(other) > LAYERS.index(own):
        return f"{own} must not include {other}, which is above it"
    if {own, other} == SIBLINGS:
        return f"{own} and {other} must not include each other"
    if free_of_libtorch(path) and not free_of_libtorch(target):
        return "this part of farspan must not see LibTorch, and that file may"
    return None


def check(root):
    complaints = []
    for path in sources.code(root):
        for quote, target in INCLUDE.findall(sources.read(root, path)):
            problem = complaint(str(path), quote, target)
            if problem:
                complaints.append(f"{path}: #include {target}: {problem}")
    return complaints


GOOD = {
    "rref/fork.cc": "#include <vector>\n#include <ATen/ATen.h>\n#include <farspan/rpc/rpc.h>\n",
    "rpc/init/init.cc": "#include <farspan/optim/distributed_optimizer.h>\n",
    "rref/protocol.h": "#include <farspan/rref/id.h>\n#include <farspan/c10d/base/error.h>\n",
    "c10d/values/message.cc": "#include <farspan/c10d/values/value.capnp.h>\n",
    "tests/rref/fork_test.cc": '#include "support/world.h"\n#include <farspan/optim/x.h>\n',
}
BAD = {
    "rpc/rpc.h": "#include <farspan/autograd/context.h>\n",
    "rpc/wire/frame.h": "#include <farspan/rpc/agent/agent.h>\n",
    "rpc/agent/send.cc": "#  include <farspan/rpc/init/init.h>\n",
    "c10d/base/error.h": "#include <farspan/c10d/net/loop.h>\n",
    "c10d/net/loop.cc": "#include <ATen/ATen.h>\n",
    "rpc/agent/agent.h": "#include <farspan/c10d/values/codec.h>\n",
    "rref/protocol.cc": "#include <farspan/rref/rref.h>\n",
    "c10d/ddp/reducer.cc": "#include <farspan/c10d/backends/fake/fake.h>\n",
    "c10d/ddp/reducer.h": "#include <farspan/autograd/leaf_gradients.h>\n",
    "optim/remote_step.cc": '#include "remote_step.h"\n',
    "autograd/engine.cc": "#include <farspan/elsewhere/engine.h>\n",
}

if __name__ == "__main__":
    sources.main(check, GOOD, BAD)
