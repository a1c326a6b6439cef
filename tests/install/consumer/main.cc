// A user of an installed farspan: two processes, one call.
#include <ATen/ATen.h>

#include <iostream>
#include <string>

#include <farspan/farspan.h>

at::Tensor square(const at::Tensor& x) { return x * x; }
FARSPAN_REGISTER(square);

int main() {
  farspan::spawn(2, [](int rank, int) {
    farspan::init_rpc("worker" + std::to_string(rank));
    if (rank == 0) {
      const auto sum = farspan::rpc_sync("worker1", square, at::arange(4)).sum().item<int64_t>();
      std::cout << "0 + 1 + 4 + 9 = " << sum << "\n";
      if (sum != 14) throw farspan::Error(farspan::Code::kInternal, "wrong sum");
    }
    farspan::shutdown();
  });
}
