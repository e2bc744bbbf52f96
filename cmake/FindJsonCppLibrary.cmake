# Finds JsonCpp: target JsonCppLibrary::JsonCppLibrary, variable JsonCppLibrary_FOUND. JsonCpp's own package file cannot
# be included twice in one directory, so that a consumer of Penstock could not find it too.
find_path(JsonCppLibrary_INCLUDE_DIR json/json.h PATH_SUFFIXES jsoncpp)
find_library(JsonCppLibrary_LIBRARY jsoncpp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(JsonCppLibrary REQUIRED_VARS JsonCppLibrary_LIBRARY JsonCppLibrary_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian: libjsoncpp-dev")
if(JsonCppLibrary_FOUND AND NOT TARGET JsonCppLibrary::JsonCppLibrary)
  add_library(JsonCppLibrary::JsonCppLibrary UNKNOWN IMPORTED)
  set_target_properties(JsonCppLibrary::JsonCppLibrary PROPERTIES
    IMPORTED_LOCATION "${JsonCppLibrary_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${JsonCppLibrary_INCLUDE_DIR}")
endif()
mark_as_advanced(JsonCppLibrary_INCLUDE_DIR JsonCppLibrary_LIBRARY)
