# Finds hiredis, a client library of Redis, and defines farspan::hiredis.
find_path(Hiredis_INCLUDE_DIR hiredis/hiredis.h)
find_library(Hiredis_LIBRARY hiredis)
mark_as_advanced(Hiredis_INCLUDE_DIR Hiredis_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Hiredis REQUIRED_VARS Hiredis_LIBRARY Hiredis_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian has it in the package libhiredis-dev.")

if(Hiredis_FOUND AND NOT TARGET farspan::hiredis)
  add_library(farspan::hiredis UNKNOWN IMPORTED)
  set_target_properties(farspan::hiredis PROPERTIES
    IMPORTED_LOCATION ${Hiredis_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Hiredis_INCLUDE_DIR})
endif()
