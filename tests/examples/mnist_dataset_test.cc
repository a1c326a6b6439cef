// The rules under test: examples/mnist/dataset.h.
#include "mnist/dataset.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <farspan/c10d/base/error.h>

namespace mnist {
namespace {

using std::string_literals::operator""s;

// A folder with a tiny, valid data set, gone with the test.
class MnistFiles : public testing::Test {
 protected:
  MnistFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "mnist-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    write("train-images-idx3-ubyte", images(2));
    write("train-labels-idx1-ubyte", labels("\7\2"s));
  }
  ~MnistFiles() override { std::filesystem::remove_all(folder_); }

  static std::string u32(uint32_t v) {
    return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8),
            static_cast<char>(v)};
  }
  static std::string images(uint32_t count) {
    std::string file = u32(0x803) + u32(count) + u32(28) + u32(28);
    for (uint32_t i = 0; i < count; ++i) file += std::string(28 * 28 - 1, '\0') + '\xff';
    return file;
  }
  static std::string labels(const std::string& values) {
    return u32(0x801) + u32(static_cast<uint32_t>(values.size())) + values;
  }

  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void write_gz(const std::string& name, const std::string& bytes) {
    std::filesystem::remove(folder_ / name);
    gzFile file = gzopen((folder_ / (name + ".gz")).c_str(), "wb");
    ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    gzclose(file);
  }
  std::string read_gz_bytes(const std::string& name) const {
    std::ifstream file(folder_ / (name + ".gz"), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // The error of load_train(), or a failure of the test.
  farspan::Error error() const {
    try {
      load_train(folder_);
    } catch (const farspan::Error& e) {
      return e;
    }
    ADD_FAILURE() << "load_train() accepted the files";
    return farspan::Error(farspan::Code::kOk, "");
  }
  void expect_corrupt(const std::string& message) const {
    const farspan::Error e = error();
    EXPECT_EQ(e.code(), farspan::Code::kCorrupt);
    EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(folder_.string()), std::string::npos) << e.what();
  }

  std::filesystem::path folder_;
};

TEST(MnistDataset, TheTrainingSetIsWhole) {
  const Dataset data = load_train();
  EXPECT_EQ(data.images.sizes(), (at::IntArrayRef{60000, 1, 28, 28}));
  EXPECT_EQ(data.images.scalar_type(), at::kFloat);
  EXPECT_EQ(data.labels.scalar_type(), at::kLong);
  // Expect: the published counts of the ten digits, and pixels of mean 0 and deviation 1.
  EXPECT_TRUE(at::equal(
      data.labels.bincount(),
      at::tensor({5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}).to(at::kLong)));
  EXPECT_NEAR(data.images.mean().item<double>(), 0, 1e-3);
  EXPECT_NEAR(data.images.std().item<double>(), 1, 1e-3);
}

TEST(MnistDataset, TheTestSetIsWhole) {
  const Dataset data = load_test();
  EXPECT_EQ(data.images.sizes(), (at::IntArrayRef{10000, 1, 28, 28}));
  EXPECT_TRUE(
      at::equal(data.labels.bincount(),
                at::tensor({980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009}).to(at::kLong)));
}

TEST_F(MnistFiles, PixelsAreNormalisedAndLabelsKept) {
  const Dataset data = load_train(folder_);
  EXPECT_EQ(data.size(), 2);
  EXPECT_FLOAT_EQ(data.images[1][0][27][27].item<float>(), (1 - 0.1307f) / 0.3081f);
  EXPECT_FLOAT_EQ(data.images[1][0][27][26].item<float>(), -0.1307f / 0.3081f);
  EXPECT_TRUE(at::equal(data.labels, at::tensor({7, 2}).to(at::kLong)));
}

TEST_F(MnistFiles, CompressedFilesAreReadLikePlainOnes) {
  const Dataset plain = load_train(folder_);
  write_gz("train-images-idx3-ubyte", images(2));
  write_gz("train-labels-idx1-ubyte", labels("\7\2"s));
  const Dataset unpacked = load_train(folder_);
  EXPECT_TRUE(at::equal(plain.images, unpacked.images));
  EXPECT_TRUE(at::equal(plain.labels, unpacked.labels));
}

TEST(MnistSample, IsEveryNthImageWithItsLabel) {
  const at::Tensor numbers = at::arange(10, at::kLong);
  const Dataset data{numbers.to(at::kFloat).view({10, 1, 1, 1}), numbers};
  const auto labels_of = [&](int64_t count) {
    const Dataset some = data.sample(count);
    EXPECT_TRUE(at::equal(some.images.flatten().to(at::kLong), some.labels)) << count;
    EXPECT_TRUE(some.labels.is_alias_of(numbers)) << count;
    const at::Tensor labels = some.labels.contiguous();
    const auto* begin = labels.const_data_ptr<int64_t>();
    return std::vector<int64_t>(begin, begin + labels.numel());
  };
  EXPECT_EQ(labels_of(1), (std::vector<int64_t>{0}));
  EXPECT_EQ(labels_of(3), (std::vector<int64_t>{0, 3, 6}));
  EXPECT_EQ(labels_of(5), (std::vector<int64_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(labels_of(7).size(), 7u);
  EXPECT_EQ(labels_of(10).size(), 10u);
  EXPECT_EQ(labels_of(60'000).size(), 10u);
}

TEST_F(MnistFiles, AMissingFileIsNamed) {
  std::filesystem::remove(folder_ / "train-labels-idx1-ubyte");
  EXPECT_EQ(error().code(), farspan::Code::kNotFound);
  EXPECT_NE(error().operation().find("train-labels-idx1-ubyte"), std::string::npos);
}

TEST_F(MnistFiles, EveryTruncationOfAPlainFileIsAnError) {
  const std::string whole = images(2);
  for (const size_t size : {0ul, 3ul, 4ul, 15ul, 16ul, 17ul, 16ul + 784, whole.size() - 1}) {
    write("train-images-idx3-ubyte", whole.substr(0, size));
    expect_corrupt("the file ends");
  }
}

TEST_F(MnistFiles, EveryTruncationOfACompressedFileIsAnError) {
  write_gz("train-images-idx3-ubyte", images(2));
  const std::string whole = read_gz_bytes("train-images-idx3-ubyte");
  for (size_t size = 0; size < whole.size(); ++size) {
    write("train-images-idx3-ubyte.gz", whole.substr(0, size));
    EXPECT_EQ(error().code(), farspan::Code::kCorrupt) << size << " bytes of " << whole.size();
  }
}

TEST_F(MnistFiles, ABitThatFlippedInACompressedFileIsAnError) {
  write_gz("train-labels-idx1-ubyte", labels("\7\2"s));
  std::string bytes = read_gz_bytes("train-labels-idx1-ubyte");
  bytes[bytes.size() - 7] ^= 1;  // inside the checksum
  write("train-labels-idx1-ubyte.gz", bytes);
  EXPECT_EQ(error().code(), farspan::Code::kCorrupt);
}

TEST_F(MnistFiles, BytesAfterTheLastItemAreAnError) {
  write("train-labels-idx1-ubyte", labels("\7\2"s) + "x");
  expect_corrupt("goes on after its last item");
}

TEST_F(MnistFiles, AnotherMagicNumberIsAnError) {
  write("train-images-idx3-ubyte", u32(0x801) + images(2).substr(4));
  expect_corrupt("magic number of images is 2049, expected 2051");
}

TEST_F(MnistFiles, ImagesOfAnotherSizeAreAnError) {
  write("train-images-idx3-ubyte", u32(0x803) + u32(2) + u32(28) + u32(29));
  expect_corrupt("number of columns is 29, expected 28");
}

TEST_F(MnistFiles, AnAbsurdCountIsRefusedBeforeAnythingIsAllocated) {
  write("train-images-idx3-ubyte", u32(0x803) + u32(0xffffffff) + u32(28) + u32(28));
  expect_corrupt("number of items is 4294967295");
}

TEST_F(MnistFiles, ImagesAndLabelsMustBeEquallyMany) {
  write("train-labels-idx1-ubyte", labels("\7\2\1"s));
  expect_corrupt("3 labels for 2 images");
}

TEST_F(MnistFiles, ALabelIsADigit) {
  write("train-labels-idx1-ubyte", labels("\7\12"s));
  expect_corrupt("a label is 10");
}

}  // namespace
}  // namespace mnist
