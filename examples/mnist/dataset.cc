#include "mnist/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>

#include <farspan/c10d/base/error.h>

namespace mnist {
namespace {

using farspan::Code;
using farspan::Error;
using std::filesystem::path;

constexpr uint32_t kImagesMagic = 0x803;  // unsigned bytes, three dimensions
constexpr uint32_t kLabelsMagic = 0x801;  // unsigned bytes, one dimension
constexpr uint32_t kSide = 28;
constexpr uint32_t kMaxItems = 1'000'000;  // a header that asks for more is no MNIST

[[noreturn]] void throw_corrupt(const path& file, std::string message) {
  throw Error(Code::kCorrupt, std::move(message))
      .operation("read '" + file.string() + "'")
      .advice("fetch the file again, or leave the folder out to take the copy that comes along");
}

// One IDX file, read from front to back. zlib passes files through that are not compressed.
class IdxFile {
 public:
  explicit IdxFile(path file) : path_(std::move(file)), file_(gzopen(path_.c_str(), "rb")) {
    if (!file_) {
      throw Error(Code::kNotFound, std::strerror(errno))
          .operation("open '" + path_.string() + "'")
          .advice("name the folder that holds the four MNIST files");
    }
  }

  uint32_t read_u32(const char* what) {
    std::array<unsigned char, 4> b{};
    read(b.data(), b.size(), what);
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
  }

  void expect_u32(uint32_t wanted, const char* what) {
    const uint32_t found = read_u32(what);
    if (found == wanted) return;
    throw_corrupt(path_, std::string(what) + " is " + std::to_string(found) + ", expected " +
                             std::to_string(wanted));
  }

  uint32_t read_count() {
    const uint32_t count = read_u32("the number of items");
    if (count > 0 && count <= kMaxItems) return count;
    throw_corrupt(path_, "the number of items is " + std::to_string(count) + ", expected 1 to " +
                             std::to_string(kMaxItems));
  }

  void read(void* to, size_t size, const char* what) {
    const int got = gzread(file_.get(), to, static_cast<unsigned>(size));
    if (got == static_cast<int>(size) && !failed()) return;
    throw_corrupt(path_, std::string("the file ends or is damaged inside ") + what +
                             (failed() ? " (" + reason() + ")" : ""));
  }

  // Also makes zlib check the length and the checksum at the end of the file.
  void expect_end() {
    char extra;
    const int got = gzread(file_.get(), &extra, 1);
    if (got > 0) throw_corrupt(path_, "the file goes on after its last item");
    if (got < 0 || failed()) throw_corrupt(path_, "the file is damaged (" + reason() + ")");
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };

  // Z_BUF_ERROR: a compressed stream that stops before its end.
  bool failed() const {
    int code = Z_OK;
    gzerror(file_.get(), &code);
    return code < 0;
  }
  std::string reason() const {
    int code = Z_OK;
    const std::string_view text = gzerror(file_.get(), &code);
    return std::string(code == Z_BUF_ERROR ? "it is cut off" : text);
  }

  const path path_;
  const std::unique_ptr<gzFile_s, Close> file_;
};

path find_file(const path& folder, const std::string& name) {
  const path plain = folder / name;
  std::error_code none;
  return std::filesystem::exists(plain, none) ? plain : folder / (name + ".gz");
}

at::Tensor read_images(const path& file) {
  IdxFile idx(file);
  idx.expect_u32(kImagesMagic, "the magic number of images");
  const uint32_t count = idx.read_count();
  idx.expect_u32(kSide, "the number of rows");
  idx.expect_u32(kSide, "the number of columns");
  at::Tensor pixels = at::empty({count, 1, kSide, kSide}, at::kByte);
  idx.read(pixels.data_ptr(), pixels.nbytes(), "the images");
  idx.expect_end();
  return pixels.to(at::kFloat).div_(255).sub_(0.1307).div_(0.3081);
}

at::Tensor read_labels(const path& file) {
  IdxFile idx(file);
  idx.expect_u32(kLabelsMagic, "the magic number of labels");
  at::Tensor labels = at::empty({idx.read_count()}, at::kByte);
  idx.read(labels.data_ptr(), labels.nbytes(), "the labels");
  idx.expect_end();
  const auto* first = labels.const_data_ptr<uint8_t>();
  const auto largest = *std::max_element(first, first + labels.numel());
  if (largest > 9) throw_corrupt(file, "a label is " + std::to_string(largest) + ", not 0 to 9");
  return labels.to(at::kLong);
}

Dataset load(const path& folder, const std::string& prefix) {
  const path images = find_file(folder, prefix + "-images-idx3-ubyte");
  const path labels = find_file(folder, prefix + "-labels-idx1-ubyte");
  Dataset data{read_images(images), read_labels(labels)};
  if (data.images.size(0) != data.size()) {
    throw_corrupt(labels, std::to_string(data.size()) + " labels for " +
                              std::to_string(data.images.size(0)) + " images");
  }
  return data;
}

}  // namespace

Dataset Dataset::sample(int64_t count) const {
  count = std::clamp<int64_t>(count, 1, std::max<int64_t>(1, size()));
  const int64_t step = std::max<int64_t>(1, size() / count);
  return {images.slice(0, 0, step * count, step), labels.slice(0, 0, step * count, step)};
}

path default_folder() { return MNIST_FOLDER; }

Dataset load_train(const path& folder) { return load(folder, "train"); }
Dataset load_test(const path& folder) { return load(folder, "t10k"); }

}  // namespace mnist
