// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Overloaded: one function object of several, for std::visit.
#pragma once

namespace farspan::dist_autograd {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // Clang 14 needs it

}  // namespace farspan::dist_autograd
