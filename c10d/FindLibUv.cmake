# Finds libuv and defines farspan::uv.
#
# libtorch_cpu.so exports the symbols of a libuv of its own, and of two copies whichever comes first
# serves both. So farspan takes the static libuv and hides it (--exclude-libs): our calls stay with
# our copy, and LibTorch's with its own. That archive is not position independent; with
# FARSPAN_SHARED_LIBUV on, libuv.so is linked, before LibTorch, and serves both.
find_path(LibUv_INCLUDE_DIR uv.h)
if(FARSPAN_SHARED_LIBUV)
  find_library(LibUv_LIBRARY uv)
else()
  find_library(LibUv_LIBRARY NAMES libuv_a.a libuv.a)
endif()
mark_as_advanced(LibUv_INCLUDE_DIR LibUv_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibUv REQUIRED_VARS LibUv_LIBRARY LibUv_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian has it in the package libuv1-dev.")

if(LibUv_FOUND AND NOT TARGET farspan::uv)
  find_package(Threads REQUIRED)
  add_library(farspan::uv INTERFACE IMPORTED)
  set_target_properties(farspan::uv PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${LibUv_INCLUDE_DIR})
  if(FARSPAN_SHARED_LIBUV)
    # What a library depends on is linked after it: so libuv.so comes before LibTorch.
    add_library(farspan::libuv SHARED IMPORTED)
    set_target_properties(farspan::libuv PROPERTIES
      IMPORTED_LOCATION ${LibUv_LIBRARY}
      INTERFACE_LINK_LIBRARIES $<TARGET_NAME_IF_EXISTS:farspan::libtorch_torch_cpu>)
    target_link_libraries(farspan::uv INTERFACE farspan::libuv)
  else()
    get_filename_component(libuv_file ${LibUv_LIBRARY} NAME)
    # Whole: else what LibTorch's copy defines already, where that comes first, is not taken from it.
    target_link_libraries(farspan::uv INTERFACE
      $<LINK_LIBRARY:WHOLE_ARCHIVE,${LibUv_LIBRARY}> Threads::Threads ${CMAKE_DL_LIBS} rt)
    target_link_options(farspan::uv INTERFACE LINKER:--exclude-libs,${libuv_file})
  endif()
endif()
