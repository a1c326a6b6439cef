#include "training/device.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <initializer_list>

#include <farspan/c10d/base/error.h>

namespace training {
namespace {

// The first of these variables that is set: of launchers that say it for the host, then for the
// job.
int number_of(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return otherwise;
}

}  // namespace

Device::Device(const std::string& kind) : own_(c10::kCPU) {
  if (kind == "cpu") return;
  if (!at::hasCUDA()) {
    throw farspan::Error(farspan::Code::kUnavailable,
                         "there is no GPU, or this was built without CUDA")
        .operation("--device cuda")
        .advice(
            "look at nvidia-smi; a build for GPUs needs the CUDA toolkit (CUDA_HOME) and "
            "-DFARSPAN_EXAMPLES_CUDA=ON, as ./dev demo has it");
  }
  const int gpus = static_cast<int>(at::detail::getCUDAHooks().deviceCount());
  const int rank = number_of(
      {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "RANK"}, 0);
  const int ranks = number_of({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                               "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"},
                              1);
  own_ = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank % gpus));
  by_nccl_ = ranks <= gpus;
}

}  // namespace training
