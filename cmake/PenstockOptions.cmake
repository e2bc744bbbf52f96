# Build options. A project that adds Penstock as a subdirectory gets only the library by default.
option(PENSTOCK_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(PENSTOCK_BUILD_TOOLS "Build the command line" ${PROJECT_IS_TOP_LEVEL})
option(PENSTOCK_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(PENSTOCK_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(PENSTOCK_INSTALL "Generate the install target" ${PROJECT_IS_TOP_LEVEL})
option(PENSTOCK_WARNINGS_AS_ERRORS "Fail on warnings; the presets set it, consumers never inherit it" OFF)
set(PENSTOCK_SANITIZE "" CACHE STRING "Sanitizers for every target, such as address,undefined or thread")
set(PENSTOCK_CUDA AUTO CACHE STRING "Build the CUDA adapters: AUTO (when a compiler is found), ON or OFF")
set_property(CACHE PENSTOCK_CUDA PROPERTY STRINGS AUTO ON OFF)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
