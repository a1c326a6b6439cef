// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// keep_freed_memory: what a program that trains should say to malloc.
// Source: glibc's manual, "Malloc Tunable Parameters".
#pragma once

namespace farspan {

// From now on malloc keeps what is freed, for what is allocated next. Left alone, glibc's gives
// large blocks back to the kernel at once: in each training step the same tensors come anew from
// there, which zeroes them and takes a page fault for every 4 KiB.
//
// For the whole process, and for good: it then holds on to about as much as it ever needed. Of more
// than one thread's large tensors, those of the main thread profit most.
//   returns  false where malloc refuses; one that is not glibc's (jemalloc) does as it likes
//
// Threading: any thread; best called at the beginning of main().
bool keep_freed_memory() noexcept;

}  // namespace farspan
