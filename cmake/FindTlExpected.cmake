# Finds tl::expected, a header; some distributions provide no CMake package for it: target TlExpected::TlExpected,
# variable TlExpected_FOUND.
find_path(TlExpected_INCLUDE_DIR tl/expected.hpp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TlExpected REQUIRED_VARS TlExpected_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian: libexpected-dev")
if(TlExpected_FOUND AND NOT TARGET TlExpected::TlExpected)
  add_library(TlExpected::TlExpected INTERFACE IMPORTED)
  set_target_properties(TlExpected::TlExpected PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${TlExpected_INCLUDE_DIR}")
endif()
mark_as_advanced(TlExpected_INCLUDE_DIR)
