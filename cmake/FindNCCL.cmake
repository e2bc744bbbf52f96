# Finds the header of NCCL, whose library is loaded at run time: target NCCL::header, variable NCCL_FOUND.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR)
if(NCCL_FOUND AND NOT TARGET NCCL::header)
  add_library(NCCL::header INTERFACE IMPORTED)
  set_target_properties(NCCL::header PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}" INTERFACE_LINK_LIBRARIES CUDA::toolkit)
endif()
mark_as_advanced(NCCL_INCLUDE_DIR)
