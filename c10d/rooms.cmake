# The vocabulary of every CMakeLists.txt here: farspan_library, farspan_capnp,
# farspan_program, farspan_test. One room, one CMakeLists.txt, one target.

# Headers are reached as <farspan/ROOM/...> through links in the build tree. The repository itself
# stays off the include path: a bare `rpc/` there collides with the system's <rpc/...>.
set(FARSPAN_INCLUDE ${PROJECT_BINARY_DIR}/include)
set(FARSPAN_GENERATED ${PROJECT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${FARSPAN_INCLUDE}/farspan ${FARSPAN_GENERATED})
foreach(top c10d rpc rref autograd optim)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${top} ${FARSPAN_INCLUDE}/farspan/${top} SYMBOLIC)
endforeach()

# How this project's own targets are compiled and linked; users' targets see none of it.
add_library(farspan_build INTERFACE)
target_compile_options(farspan_build INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  $<$<BOOL:${FARSPAN_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Collecting garbage takes g++ a tenth of the time, and saves but 100 MB of memory.
  target_compile_options(farspan_build INTERFACE "SHELL:--param ggc-min-heapsize=2000000")
  # g++ 12 gives false alarms of these kinds in optimised standard library code.
  foreach(kind maybe-uninitialized array-bounds stringop-overflow stringop-overread restrict)
    target_compile_options(farspan_build INTERFACE -Wno-error=${kind})
  endforeach()
endif()
if(FARSPAN_SANITIZE)
  target_compile_options(farspan_build INTERFACE
    -fsanitize=${FARSPAN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(farspan_build INTERFACE -fsanitize=${FARSPAN_SANITIZE})
endif()
if(FARSPAN_SHARED_LIBUV)
  target_compile_options(farspan_build INTERFACE -fPIC)
endif()
find_program(FARSPAN_MOLD mold)
if(FARSPAN_MOLD)
  target_link_options(farspan_build INTERFACE -fuse-ld=mold)
endif()

# ccache, where it is: precompiled headers make it ask for these leniencies. Clang's hold the paths of
# what they were made from: their sum, which is the same in every clone, stands for them.
find_program(FARSPAN_CCACHE ccache)
if(FARSPAN_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -include <PCH_HEADER>)  # what ccache knows
    list(APPEND CMAKE_CXX_COMPILER_LAUNCHER CCACHE_PCH_EXTSUM=true)
    set(FARSPAN_SUM_OF_HEADERS ${CMAKE_CURRENT_LIST_DIR}/sum_of_headers)
  endif()
  list(APPEND CMAKE_CXX_COMPILER_LAUNCHER ${FARSPAN_CCACHE})
endif()

# farspan_precompile(<target> HEADERS .. [DEPENDS ..]): compiled once, for all that REUSE_FROM it.
file(CONFIGURE OUTPUT precompiled.cc CONTENT "// Holds precompiled headers.\n")
function(farspan_precompile target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;DEPENDS")
  add_library(${target} OBJECT ${PROJECT_BINARY_DIR}/precompiled.cc)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_link_libraries(${target} PRIVATE farspan_build ${arg_DEPENDS})
  target_precompile_headers(${target} PRIVATE ${arg_HEADERS})
  if(FARSPAN_SUM_OF_HEADERS)
    set_target_properties(${target} PROPERTIES
      CXX_COMPILER_LAUNCHER "${FARSPAN_SUM_OF_HEADERS};${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()
# With more headers Clang is faster still, since it keeps their templates instantiated, but g++, which
# instantiates them anew for each file, is slower.
set(torch_test_headers <ATen/ATen.h>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(farspan_build INTERFACE "SHELL:-Xclang -fno-pch-timestamp")  # for ccache
  set(torch_test_headers <torch/torch.h>)
endif()
if(FARSPAN_TORCH)
  farspan_precompile(farspan_torch_headers HEADERS <ATen/ATen.h> DEPENDS farspan::torch)
endif()
if(FARSPAN_TESTS)
  farspan_precompile(farspan_test_headers HEADERS <gmock/gmock.h> DEPENDS GTest::gmock)
endif()
if(FARSPAN_TESTS AND FARSPAN_TORCH)
  farspan_precompile(farspan_torch_test_headers HEADERS ${torch_test_headers} <gmock/gmock.h>
    DEPENDS farspan::torch GTest::gmock)
endif()

# farspan_library(<room> [TORCH] [PUBLIC headers..] [HEADERS ..] [SOURCES ..] [DEPENDS ..] [PRIVATE ..])
# The room's target: farspan_library(rpc/wire ..) gives farspan_rpc_wire, alias farspan::rpc_wire.
# Paths are relative to the current folder. Only PUBLIC headers are installed; HEADERS
# are the others: like those, `./dev lint` compiles each alone. TORCH: the room needs
# LibTorch, and is left out when FARSPAN_TORCH is off. A room without SOURCES is headers only.
# DEPENDS are targets that the room's headers need, PRIVATE those that only its sources do.
function(farspan_library room)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "PUBLIC;HEADERS;SOURCES;DEPENDS;PRIVATE")
  if(arg_TORCH AND NOT FARSPAN_TORCH)
    return()
  endif()
  string(REPLACE "/" "_" name ${room})
  set(target farspan_${name})
  if(arg_SOURCES)
    set(scope PUBLIC)
    add_library(${target} STATIC ${arg_SOURCES})
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:farspan_build>)
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
  endif()
  add_library(farspan::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  list(TRANSFORM arg_PUBLIC PREPEND ${FARSPAN_INCLUDE}/farspan/${folder}/)
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${FARSPAN_INCLUDE} FILES ${arg_PUBLIC})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_DEPENDS})
  if(arg_TORCH)
    target_link_libraries(${target} ${scope} farspan::torch)
    if(arg_SOURCES)
      target_precompile_headers(${target} REUSE_FROM farspan_torch_headers)
    endif()
  endif()
  if(NOT folder MATCHES "^(tests|examples)")
    set_property(GLOBAL APPEND PROPERTY FARSPAN_LIBRARIES ${target})  # these are installed
    set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
  if(arg_HEADERS)  # CMake verifies only sets that have an interface, so these get one of their own
    list(TRANSFORM arg_HEADERS PREPEND ${FARSPAN_INCLUDE}/farspan/${folder}/)
    add_library(${target}_headers INTERFACE)
    target_sources(${target}_headers
      INTERFACE FILE_SET HEADERS BASE_DIRS ${FARSPAN_INCLUDE} FILES ${arg_HEADERS})
    target_link_libraries(${target}_headers INTERFACE ${target} ${arg_PRIVATE})
    set_target_properties(${target}_headers PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
endfunction()

# farspan_capnp(<room> schemas..): compiles Cap'n Proto schemas of the current folder into the room's
# target, which it makes when farspan_library has not. Included as <farspan/FOLDER/name.capnp.h>.
function(farspan_capnp room)
  string(REPLACE "/" "_" name ${room})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(CAPNPC_SRC_PREFIX ${PROJECT_SOURCE_DIR})
  set(CAPNPC_IMPORT_DIRS ${FARSPAN_INCLUDE})  # import "/farspan/c10d/values/value.capnp"
  set(CAPNPC_OUTPUT_DIR ${FARSPAN_GENERATED}/farspan)
  file(MAKE_DIRECTORY ${CAPNPC_OUTPUT_DIR}/${folder})
  capnp_generate_cpp(sources headers ${ARGN})
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -w SKIP_PRECOMPILE_HEADERS ON)
  if(NOT TARGET farspan_${name})
    farspan_library(${room} SOURCES ${sources})
  else()
    target_sources(farspan_${name} PRIVATE ${sources})
  endif()
  target_sources(farspan_${name}
    PUBLIC FILE_SET schemas TYPE HEADERS BASE_DIRS ${FARSPAN_GENERATED} FILES ${headers})
  target_include_directories(farspan_${name} SYSTEM PUBLIC $<BUILD_INTERFACE:${FARSPAN_GENERATED}>)
  target_link_libraries(farspan_${name} PUBLIC CapnProto::capnp)
endfunction()

# farspan_program(<name> [TORCH] SOURCES .. [DEPENDS ..]): an executable, for examples and benchmarks.
# PRECOMPILED: what farspan_precompile() made; by default LibTorch's headers, where it needs them.
# Quoted includes start at tests/ and examples/ ("support/world.h", "mnist/net.h").
function(farspan_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "PRECOMPILED" "SOURCES;DEPENDS")
  if(arg_TORCH AND NOT FARSPAN_TORCH)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_compile_options(${name} PRIVATE
    "SHELL:-iquote ${PROJECT_SOURCE_DIR}/tests" "SHELL:-iquote ${PROJECT_SOURCE_DIR}/examples")
  target_include_directories(${name} PRIVATE ${FARSPAN_INCLUDE})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} farspan_build)
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE farspan::torch)
    set(precompiled farspan_torch_headers)
  endif()
  if(arg_PRECOMPILED)
    set(precompiled ${arg_PRECOMPILED})
  endif()
  if(precompiled)
    target_precompile_headers(${name} REUSE_FROM ${precompiled})
  endif()
endfunction()

# farspan_test(<name> [TORCH] [SERIAL] SOURCES .. [DEPENDS ..] [LABELS ..] [TIMEOUT seconds])
# One ctest entry for the whole binary: loading LibTorch takes about half a second, so an entry
# for each case would cost more than the cases. GoogleTest's main is linked in. SERIAL: no other test
# runs meanwhile, for those that measure time or use all cores. The label `gpu` needs `--gpu`.
function(farspan_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;SERIAL" "TIMEOUT" "SOURCES;DEPENDS;LABELS")
  if(NOT FARSPAN_TESTS OR (arg_TORCH AND NOT FARSPAN_TORCH))
    return()
  endif()
  if(arg_TORCH)
    set(kind TORCH PRECOMPILED farspan_torch_test_headers)
  else()
    set(kind PRECOMPILED farspan_test_headers)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  farspan_program(${name} ${kind} SOURCES ${arg_SOURCES}
    DEPENDS ${arg_DEPENDS} GTest::gmock GTest::gtest_main)
  if(FARSPAN_SANITIZE STREQUAL "thread")
    target_link_libraries(${name} PRIVATE farspan::tests_support_closes_of_libuv)
    target_link_options(${name} PRIVATE LINKER:--wrap=syscall)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" RUN_SERIAL ${arg_SERIAL}
    ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1")
endfunction()
