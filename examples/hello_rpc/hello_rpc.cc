// The smallest useful program: two workers, a call, a call in flight, a remote object.
#include <ATen/ATen.h>
#include <farspan/farspan.h>
#include <cstdio>

at::Tensor square(const at::Tensor& x) { return x * x; }
at::Tensor ones(int64_t n) { return at::ones({n}); }
FARSPAN_REGISTER(square, ones);

int main() {
  farspan::spawn(2, [](int rank, int) {
    farspan::init_rpc("worker" + std::to_string(rank));
    if (rank == 0) {
      auto x = at::arange(4);
      auto y = farspan::rpc_sync("worker1", square, x);   // waits
      auto z = farspan::rpc_async("worker1", square, y);  // a Future
      auto r = farspan::remote("worker1", ones, 4);       // stays there
      std::printf("sum of squares %g, of fourth powers %g, of ones %g\n", y.sum().item<double>(),
                  z.wait().sum().item<double>(), r.to_here().sum().item<double>());
    }
    farspan::shutdown();
  });
}
