// The smallest user of an installed farspan.
#include <ATen/ATen.h>

#include <iostream>

#include <farspan/c10d/base/error.h>

int main() {
  const farspan::Error error(farspan::Code::kTimeout, "nobody answered");
  std::cout << error.what() << ", sum " << at::ones({2, 3}).sum().item<float>() << "\n";
}
