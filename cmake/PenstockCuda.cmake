# Finds the CUDA toolkit unless PENSTOCK_CUDA is OFF, and with it the header of NCCL. Sets PENSTOCK_HAS_CUDA and
# PENSTOCK_HAS_NCCL.
#
# CUDA_STANDARD is not set and -std=c++20 is passed as an option: CMake before 3.26 does not know CUDA C++20.
set(PENSTOCK_HAS_CUDA FALSE)
set(PENSTOCK_HAS_NCCL FALSE)
if(NOT PENSTOCK_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc CACHE FILEPATH "CUDA compiler")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "80-virtual;90-real" CACHE STRING "CUDA architectures")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    # A quarter of the bytes of the kernels in each program. Every driver that runs CUDA 13 reads it.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
    endif()
    set(PENSTOCK_HAS_CUDA TRUE)
    find_package(NCCL 2.27)  # its header has windows
    if(NCCL_FOUND)
      set(PENSTOCK_HAS_NCCL TRUE)
    endif()
  elseif(PENSTOCK_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PENSTOCK_CUDA is ON and no CUDA compiler was found; set CMAKE_CUDA_COMPILER, or PENSTOCK_CUDA=OFF")
  endif()
endif()
message(STATUS "Penstock: CUDA adapters ${PENSTOCK_HAS_CUDA}, NCCL ${PENSTOCK_HAS_NCCL}")
