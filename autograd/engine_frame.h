// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The engine frame: runs a function as LibTorch's engine runs a node, so that what nodes may ask of
// the engine during backward works in it: queue_callback, backward() inside a node (checkpoint),
// the id of the pass.
#pragma once

#include <functional>
#include <vector>

namespace farspan::dist_autograd {

// Runs `work` once, on this thread (or on one of the engine's, below 60 nested passes, while this
// one waits), and then the callbacks that were queued and not taken.
// Grad mode is off in it.
//   keep_graph  what the engine tells nodes that ask
//   throws   what `work` or a callback throws
//   cost     about 6 us
void run_in_engine(bool keep_graph, const std::function<void()>& work);

using FinalCallbacks = std::vector<std::function<void()>>;

// The callbacks that Engine::queue_callback has collected in the present frame; it forgets them.
FinalCallbacks take_final_callbacks();

// Puts callbacks back, in front of those that are there.
void return_final_callbacks(FinalCallbacks callbacks);

}  // namespace farspan::dist_autograd
