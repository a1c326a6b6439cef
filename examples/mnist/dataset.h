// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Dataset: the MNIST digits as tensors, read from the four IDX files (plain or gzip'd).
#pragma once

#include <cstdint>
#include <filesystem>

#include <ATen/core/Tensor.h>

namespace mnist {

// Threading: a value; its tensors may be read from any thread.
struct Dataset {
  at::Tensor images;  // [n, 1, 28, 28] float32, (pixel / 255 - 0.1307) / 0.3081
  at::Tensor labels;  // [n] int64, 0 to 9

  int64_t size() const { return labels.size(0); }
  // Every n-th image, with the largest n that gives `count` of them, 1 or more; all of them when
  // there are no more. Shares their memory.
  Dataset sample(int64_t count) const;
};

// The copy of the data that comes with farspan.
std::filesystem::path default_folder();

// Reads train-images-idx3-ubyte and train-labels-idx1-ubyte, or with load_test() t10k-..., with or
// without the ending .gz.
//   returns  60,000 images for training and 10,000 for the test (of the full data), 188 MB and
//            31 MB
//   throws   farspan::Error: kNotFound, a file is not there; kCorrupt, it is truncated, longer
//            than its header says, or no IDX file of 28 x 28 images or of labels
Dataset load_train(const std::filesystem::path& folder = default_folder());
Dataset load_test(const std::filesystem::path& folder = default_folder());

}  // namespace mnist
