// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// keep_freed_memory: what a program that trains should say to malloc. Source: glibc's mallopt().
// Threads other than the main one still get blocks above 64 MiB from the kernel.
#pragma once

namespace farspan {

// From now on malloc keeps what is freed, for what is allocated next. Left alone, glibc's gives
// blocks above 32 MiB back to the kernel at once, and smaller ones when many of them are free: then
// the next training step gets the same tensors anew, page by page, each a fault, and zeroed.
//
// For the whole process, and for good. Each thread that allocates keeps what it needed at its peak,
// and somewhat more, since blocks of other sizes do not always fit into what is free.
//   returns  false where malloc refuses; one that is not glibc's (jemalloc) does as it likes
//
// Threading: any thread; best called at the beginning of main().
bool keep_freed_memory() noexcept;

}  // namespace farspan
