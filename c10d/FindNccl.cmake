# Finds NCCL and defines farspan::nccl. The one that LibTorch's own libraries load comes first: a
# program has only one. After LibTorch and the CUDA toolkit, and looked for anew each time, as these
# may change from one run to the next.
set(nccl_of_libtorch ${LibTorch_INCLUDE_DIR}/../../nvidia/nccl)
find_path(Nccl_INCLUDE_DIR nccl.h
  HINTS ${nccl_of_libtorch}/include ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
find_library(Nccl_LIBRARY NAMES libnccl.so.2 nccl
  HINTS ${nccl_of_libtorch}/lib ${CUDAToolkit_LIBRARY_DIR} NO_CACHE)
if(Nccl_INCLUDE_DIR)
  file(STRINGS ${Nccl_INCLUDE_DIR}/nccl.h nccl_lines
    REGEX "define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" nccl_lines "${nccl_lines}")
  list(JOIN nccl_lines . Nccl_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nccl
  REQUIRED_VARS Nccl_LIBRARY Nccl_INCLUDE_DIR
  VERSION_VAR Nccl_VERSION)

if(Nccl_FOUND AND NOT TARGET farspan::nccl)
  add_library(farspan::nccl SHARED IMPORTED GLOBAL)
  set_target_properties(farspan::nccl PROPERTIES
    IMPORTED_LOCATION ${Nccl_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Nccl_INCLUDE_DIR})
endif()
