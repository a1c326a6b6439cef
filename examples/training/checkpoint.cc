#include "training/checkpoint.h"

#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/group/values.h>

#include "console/whole_file.h"

namespace checkpoint {
namespace {

using farspan::Code;
using farspan::Error;
using std::filesystem::path;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
namespace dist = farspan::dist;

// Empty: there is no such file.
std::string read_file(const path& file) {
  if (file.empty() || !std::filesystem::exists(file)) return "";
  const auto refuse = [&](Code code, const std::string& why) {
    throw Error(code, why).operation("read '" + file.string() + "'");
  };
  if (!std::filesystem::is_regular_file(file)) refuse(Code::kInvalidArgument, "it is no file");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::string all(std::istreambuf_iterator<char>(in), {});
  if (!in.is_open() || in.bad()) refuse(Code::kUnavailable, std::strerror(errno));
  if (all.empty()) refuse(Code::kInvalidArgument, "it is empty; remove it to begin anew");
  return all;
}

// As a tensor, which may be of any size.
at::Tensor to_tensor(std::string& bytes) {
  return at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

template <class Part>
void write_part(OutputArchive& archive, const char* name, const Part& part) {
  OutputArchive own(archive.compilation_unit());
  part.save(own);
  archive.write(name, own);
}

template <class Part>
void read_part(InputArchive& archive, const char* name, Part& part) {
  InputArchive own;
  archive.read(name, own);
  part.load(own);
}

void write_count(OutputArchive& archive, const char* name, int64_t count) {
  archive.write(name, at::scalar_tensor(count, at::kLong), /*is_buffer=*/true);
}

int64_t read_count(InputArchive& archive, const char* name) {
  at::Tensor count;
  archive.read(name, count, /*is_buffer=*/true);
  return count.item<int64_t>();
}

InputArchive open_archive(const at::Tensor& bytes) {
  InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()),
                    static_cast<size_t>(bytes.numel()));
  return archive;
}

// Of nothing -1, so that whatever there is is newer.
int64_t steps_in(const at::Tensor& bytes) {
  if (bytes.numel() == 0) return -1;
  InputArchive archive = open_archive(bytes);
  return read_count(archive, "steps");
}

// What an optimizer is told when it is made counts, and not what it was told before.
class KeptOptions {
 public:
  explicit KeptOptions(torch::optim::Optimizer& optimizer) : groups_(optimizer.param_groups()) {
    for (const auto& group : groups_) options_.push_back(group.options().clone());
  }
  void put_back() {
    for (size_t i = 0; i < options_.size(); ++i) groups_[i].set_options(std::move(options_[i]));
  }

 private:
  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
};

void load(const at::Tensor& bytes, Run& run) {
  InputArchive archive = open_archive(bytes);
  KeptOptions options(run.optimizer);
  read_part(archive, "sampler", run.sampler);  // the one that says best what does not fit
  read_part(archive, "module", run.module);
  read_part(archive, "optimizer", run.optimizer);
  options.put_back();
  run.steps = read_count(archive, "steps");
  run.samples = read_count(archive, "samples");
}

// What comes out of reading, with the file's name and what to do.
template <class Read>
auto reading(const path& file, const Read& read) {
  const auto refuse = [&](Error error) {
    return error.operation("resume from '" + file.string() + "'")
        .advice("give the options that it was made with, or remove it to begin anew");
  };
  try {
    return read();
  } catch (const Error& error) {
    throw refuse(error);
  } catch (const c10::Error& error) {
    throw refuse(Error(Code::kInvalidArgument,
                       std::string("no checkpoint of this program: ") + error.msg()));
  }
}

}  // namespace

void save(const path& file, const Run& run) {
  OutputArchive archive;
  write_part(archive, "sampler", run.sampler);
  write_part(archive, "module", run.module);
  write_part(archive, "optimizer", run.optimizer);
  write_count(archive, "steps", run.steps);
  write_count(archive, "samples", run.samples);
  std::ostringstream bytes;
  archive.save_to(bytes);
  console::write_whole_file(file, bytes.view());
}

bool resume(const path& file, Run& run) {
  std::string own = read_file(file);
  at::Tensor bytes = to_tensor(own);
  const int64_t own_steps = reading(file, [&] { return steps_in(bytes); });
  const std::vector<int64_t> steps = dist::all_gather_value(own_steps);
  const auto newest = std::max_element(steps.begin(), steps.end());
  if (*newest < 0) return false;
  dist::broadcast_value(bytes, static_cast<int>(newest - steps.begin()));
  reading(file, [&] { load(bytes, run); });
  return true;
}

int64_t steps_left(const Run& run, int64_t epochs, int64_t batch_size) {
  const auto batches = [&](size_t samples) {
    return (static_cast<int64_t>(samples) + batch_size - 1) / batch_size;
  };
  const int64_t later = epochs - 1 - static_cast<int64_t>(run.sampler.epoch());
  if (later < 0) return 0;
  return batches(run.sampler.left()) + later * batches(run.sampler.size());
}

}  // namespace checkpoint
