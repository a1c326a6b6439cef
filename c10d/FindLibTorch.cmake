# Finds LibTorch and defines
#   farspan::torch       torch_cpu and c10: all that farspan's core links
#   farspan::torch_cuda  torch_cuda and c10_cuda too, where LibTorch has them and the CUDA toolkit is
#
# Looks at LIBTORCH_ROOT (variable or environment; a folder with include/ and lib/) and nowhere else
# when that is set; else at CMAKE_PREFIX_PATH, then at the .venv beside farspan's sources. The CUDA
# toolkit is that of CUDAToolkit_ROOT or CUDA_HOME (variable or environment), else the one that
# FindCUDAToolkit finds. Each may change from one run to the next.
# LibTorch's own TorchConfig.cmake is not used: that of the CUDA wheel fails on a machine without the
# CUDA toolkit.
foreach(own LIBTORCH_ROOT CUDA_HOME)
  # A variable goes before the environment, unless it is what the environment said in an earlier run.
  if(DEFINED ENV{${own}} AND (NOT ${own} OR "${${own}}" STREQUAL "${LibTorch_ENV_${own}}"))
    set(${own} "$ENV{${own}}" CACHE PATH "The user's own LibTorch, or CUDA toolkit" FORCE)
    set(LibTorch_ENV_${own} "$ENV{${own}}" CACHE INTERNAL "What the environment said")
  endif()
endforeach()
if(NOT "${LIBTORCH_ROOT}" STREQUAL "${LibTorch_SEARCHED_ROOT}")
  foreach(result INCLUDE_DIR torch_cpu c10 torch_cuda c10_cuda)
    unset(LibTorch_${result} CACHE)  # found elsewhere by an earlier run
  endforeach()
endif()
set(LibTorch_SEARCHED_ROOT "${LIBTORCH_ROOT}" CACHE INTERNAL "Where LibTorch was looked for")

if(LIBTORCH_ROOT)
  find_path(LibTorch_INCLUDE_DIR ATen/ATen.h
    PATHS ${LIBTORCH_ROOT} PATH_SUFFIXES include NO_DEFAULT_PATH)
else()
  file(GLOB libtorch_in_venv ${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch)
  find_path(LibTorch_INCLUDE_DIR ATen/ATen.h PATHS ${libtorch_in_venv} PATH_SUFFIXES include)
endif()
get_filename_component(libtorch_found "${LibTorch_INCLUDE_DIR}" DIRECTORY)
foreach(library torch_cpu c10 torch_cuda c10_cuda)
  find_library(LibTorch_${library} ${library} PATHS ${libtorch_found}/lib NO_DEFAULT_PATH)
  mark_as_advanced(LibTorch_${library})
endforeach()
mark_as_advanced(LibTorch_INCLUDE_DIR)

foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS ${LibTorch_INCLUDE_DIR}/${header})
    file(STRINGS ${LibTorch_INCLUDE_DIR}/${header} lines REGEX "VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX MATCHALL "[0-9]+" lines "${lines}")
    list(JOIN lines . LibTorch_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu LibTorch_c10 LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Set LIBTORCH_ROOT to one, the folder with include/ and lib/. In a clone of farspan `./dev setup` fetches one, and `./dev install` says where it is.")

# An imported target of one LibTorch library. Its own dependencies (cudart, cupti and so on, which
# torch_cpu of the CUDA wheel needs) are found by the run path that the library carries.
function(farspan_import_libtorch name)
  add_library(farspan::libtorch_${name} SHARED IMPORTED)
  set_target_properties(farspan::libtorch_${name} PROPERTIES IMPORTED_LOCATION ${LibTorch_${name}})
endfunction()

if(LibTorch_FOUND AND NOT TARGET farspan::torch)
  farspan_import_libtorch(torch_cpu)
  farspan_import_libtorch(c10)
  add_library(farspan::torch INTERFACE IMPORTED)
  set_target_properties(farspan::torch PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
      "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "farspan::libtorch_torch_cpu;farspan::libtorch_c10")
  if(NOT CUDAToolkit_ROOT AND CUDA_HOME)
    set(CUDAToolkit_ROOT ${CUDA_HOME})
  endif()
  if(NOT "${CUDAToolkit_ROOT}" STREQUAL "${LibTorch_SEARCHED_TOOLKIT}")
    get_cmake_property(cached CACHE_VARIABLES)
    list(FILTER cached INCLUDE REGEX
      "^CUDAToolkit_.*(DIR|FILE|EXECUTABLE|LIBRARY)$|^CUDA_(CUDART|.*_LIBRARY)$")
    foreach(result ${cached})
      unset(${result} CACHE)  # found elsewhere by an earlier run
    endforeach()
  endif()
  set(LibTorch_SEARCHED_TOOLKIT "${CUDAToolkit_ROOT}" CACHE INTERNAL "Where CUDA was looked for")
  # For a minimum from 3.25 on, the module of CMake 3.25 deprecates a target that it does not make where
  # the toolkit has no nvToolsExt, as from CUDA 13 on, and so fails.
  set(LibTorch_minimum ${CMAKE_MINIMUM_REQUIRED_VERSION})
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  find_package(CUDAToolkit QUIET)
  set(CMAKE_MINIMUM_REQUIRED_VERSION ${LibTorch_minimum})
  if(CUDAToolkit_FOUND AND LibTorch_torch_cuda AND LibTorch_c10_cuda)
    farspan_import_libtorch(torch_cuda)
    farspan_import_libtorch(c10_cuda)
    add_library(farspan::torch_cuda INTERFACE IMPORTED)
    # torch_cuda registers itself when it is loaded: a linker that drops it drops every CUDA kernel.
    set_target_properties(farspan::torch_cuda PROPERTIES
      INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed"
      INTERFACE_LINK_LIBRARIES
        "farspan::torch;farspan::libtorch_torch_cuda;farspan::libtorch_c10_cuda;CUDA::cudart")
  endif()
endif()
