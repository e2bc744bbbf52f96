# Functions that create one CMake target per module and set the compile flags of every target of this tree.

find_package(Threads REQUIRED)

find_package(TlExpected REQUIRED)

# penstock_compile_options(TARGET): sets private flags, which a consumer does not inherit.
function(penstock_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  # Results are guaranteed bit for bit, so the compiler must not fuse multiplications and additions.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wsign-conversion -Wnon-virtual-dtor
      # Option structs use designated initializers; members that are not named keep their default.
      -Wno-missing-field-initializers>
    # GCC 12 reports false uninitialised members of tl::expected, and false bounds of std::string.
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized -Wno-array-bounds
      -Wno-stringop-overflow -Wno-stringop-overread
      # A tenth less time to compile for a tenth more memory: GCC frees its garbage from 1 GiB on.
      --param=ggc-min-heapsize=1048576>)
  if(PENSTOCK_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(PENSTOCK_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PENSTOCK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${PENSTOCK_SANITIZE})
  endif()
endfunction()

# penstock_header_target(TARGET HEADER...): the headers are precompiled once, for the targets that reuse them. Their
# definitions must not change these headers.
function(penstock_header_target target)
  penstock_compile_options(${target})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE TlExpected::TlExpected)
  target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()

# The headers that nearly every source file parses: a file of src takes a quarter less time. Those of libraries are not
# those of programs, which are position independent in another way. Source files with other machine options or visibility cannot
# use them and have SKIP_PRECOMPILE_HEADERS. The preset asan builds without them, so that a missing #include is found.
set(penstock_precompiled_headers ${PROJECT_SOURCE_DIR}/src/precompiled_headers.hpp)
add_library(penstock_headers OBJECT src/precompiled_headers.cpp)
penstock_header_target(penstock_headers $<$<COMPILE_LANGUAGE:CXX>:${penstock_precompiled_headers}>)
add_executable(penstock_programheaders src/precompiled_headers.cpp)
penstock_header_target(penstock_programheaders $<$<COMPILE_LANGUAGE:CXX>:${penstock_precompiled_headers}>)

# penstock_module(NAME SOURCES ... [PUBLIC targets...] [PRIVATE targets...])
# Creates the library penstock_NAME, alias penstock::NAME. It links only PUBLIC and PRIVATE.
function(penstock_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(penstock_${name} STATIC ${ARG_SOURCES})
  add_library(penstock::${name} ALIAS penstock_${name})
  set_target_properties(penstock_${name} PROPERTIES EXPORT_NAME ${name})
  penstock_compile_options(penstock_${name})
  target_precompile_headers(penstock_${name} REUSE_FROM penstock_headers)
  target_include_directories(penstock_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(penstock_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY PENSTOCK_MODULES penstock_${name})
endfunction()

# penstock_program(NAME SOURCES ... LINKS ... [HEADERS target]): creates an executable with the tree's flags. HEADERS has
# the precompiled headers that it uses instead of those of penstock_programheaders.
function(penstock_program name)
  cmake_parse_arguments(ARG "" "HEADERS" "SOURCES;LINKS" ${ARGN})
  if(NOT ARG_HEADERS)
    set(ARG_HEADERS penstock_programheaders)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  penstock_compile_options(${name})
  target_precompile_headers(${name} REUSE_FROM ${ARG_HEADERS})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS})
endfunction()

# For code whose time is spent in the library it calls: command lines and tests.
set(penstock_fast_compilation $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)

# penstock_compile_faster(TARGET): all of a target's code is such code.
function(penstock_compile_faster target)
  target_compile_options(${target} PRIVATE ${penstock_fast_compilation})
endfunction()

# penstock_private_headers(TARGET): lets the target include the private headers of src/ and kernels/, which are not
# installed. For the library's own tests, tools and benchmarks; examples use only the public headers.
function(penstock_private_headers target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
endfunction()

# penstock_join_sources(TARGET): compiles the target's files several at a time, which takes a third less time. A file sees
# the local names of those before it: files with the same ones are listed in penstock_compile_alone(). The preset asan compiles
# each file alone, so that what a file lacks is found.
function(penstock_join_sources target)
  if(CMAKE_DISABLE_PRECOMPILE_HEADERS)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  # A variable may have the name of another file's function; a type of a joined file is no type of a header.
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-shadow -Wshadow=local -Wno-subobject-linkage>)
endfunction()

# penstock_compile_alone(FILE...): files of this folder that penstock_join_sources() leaves alone.
function(penstock_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# penstock_test(NAME SOURCES ... LINKS ... [LABEL unit] [PREFIX ...]): creates a GoogleTest program whose cases CTest
# lists. PREFIX distinguishes the cases of a CTest label that runs the same cases with other settings. Those of the label
# sim are also in the label seeds.
function(penstock_test name)
  cmake_parse_arguments(ARG "" "LABEL;PREFIX" "SOURCES;LINKS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  set(timeout 300)
  if(PENSTOCK_SANITIZE OR ARG_LABEL STREQUAL fuzz)
    set(timeout 900)
  endif()
  penstock_program(${name} SOURCES ${ARG_SOURCES} LINKS ${ARG_LINKS} penstock_testkit GTest::gtest_main
    HEADERS penstock_testheaders)
  penstock_private_headers(${name})
  penstock_compile_faster(${name})
  penstock_join_sources(${name})
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_PREFIX "${ARG_PREFIX}" PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${timeout})
  if(ARG_LABEL STREQUAL sim)
    # Again with all seeds, see tests/kit/seeds.hpp.
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_PREFIX "seeds.${ARG_PREFIX}" TEST_LIST ${name}_with_all_seeds
      PROPERTIES LABELS seeds TIMEOUT 900 ENVIRONMENT PENSTOCK_ALL_SEEDS=1)
  endif()
endfunction()
