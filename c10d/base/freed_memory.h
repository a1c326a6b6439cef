// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// keep_freed_memory: what a program that trains should say to malloc. Source: glibc's mallopt().
#pragma once

namespace farspan {

// From now on malloc keeps what is freed, for what is allocated next. Left alone, glibc's gives
// blocks above 32 MiB back to the kernel at once, and smaller ones when many of them are free: then
// the next training step gets the same tensors anew, page by page, each a fault, and zeroed.
//
// For the whole process, and for good. All threads share what is free, so that which of them
// computes does not matter, and wait for each other while they take blocks above a kibibyte or give
// them back. The process keeps what it needed at its peak, and somewhat more, since blocks of other
// sizes do not always fit into what is free.
//
// Say so before other threads allocate: the arenas that malloc has made for them by then stay in
// use, and what is free in those goes back to the kernel by 64 MiB at a time, as larger blocks do.
//   returns  false where malloc refuses; one that is not glibc's (jemalloc) does as it likes
//
// Threading: any thread; call it at the beginning of main().
bool keep_freed_memory() noexcept;

}  // namespace farspan
