// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What is to be done when the backward pass that this thread runs ends, well or not.
#pragma once

#include <functional>

namespace farspan::dist {

// For hooks and nodes of a pass, LibTorch's or a distributed one. Of passes in one another the
// innermost is meant.
//   ended   runs in the thread that ends the pass, as part of it; what it throws the pass throws
//   failed  runs in place of it when the pass throws, in any thread; must not throw
void at_end_of_backward(std::function<void()> ended, std::function<void()> failed);

}  // namespace farspan::dist
