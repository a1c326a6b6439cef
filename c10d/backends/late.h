// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What a collective ends with when a rank does not come in time: the same text for all ranks, also
// for the one that came late, so it says who gave up and after how long.
#pragma once

#include <string>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/time.h>

namespace farspan::dist {

// So long a rank may take to say for whom it waits; who does not is late.
inline constexpr Millis kToFindLate{500};

//   waiter      who gave up, as "rank 1 (host:pid)"
//   since       when it began to wait
//   late        who did not come; perhaps several
//   has_called  whether it has called the collective, at least
inline Error late_error(const std::string& waiter, TimePoint since, const std::string& late,
                        bool has_called) {
  return Error(Code::kTimeout,
               waiter + " gave up after " + farspan::describe(Clock::now() - since) + ": " + late +
                   (has_called ? " had called it, and did not go on" : " had not called it"))
      .worker(late)
      .advice("look at what it does, or give the operation more time");
}

}  // namespace farspan::dist
