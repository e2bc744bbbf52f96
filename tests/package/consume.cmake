# Installs what was built into a fresh prefix, configures and builds the consumer against it, and runs it.
set(prefix ${BUILD}/package-test/prefix)
file(REMOVE_RECURSE ${BUILD}/package-test)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE}/consumer -B ${BUILD}/package-test/build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${BUILD}/package-test/build)
foreach(program storage_only adam_only files minimal_trainer custom_update trainer)
  run(${BUILD}/package-test/build/${program})
endforeach()

# A C program that is built without CMake, after the prefix was moved.
file(RENAME ${prefix} ${BUILD}/package-test/moved)
file(GLOB_RECURSE libraries ${BUILD}/package-test/moved/libpenstock.so)
file(GLOB_RECURSE description ${BUILD}/package-test/moved/penstock.pc)
cmake_path(GET libraries PARENT_PATH libraries)
cmake_path(GET description PARENT_PATH description)
run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${description} sh -c
    "cc ${SOURCE}/consumer/files.c -o ${BUILD}/package-test/files $(pkg-config --cflags --libs penstock)")
run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${libraries} ${BUILD}/package-test/files)
file(RENAME ${BUILD}/package-test/moved ${prefix})

# A machine without the CUDA toolkit.
run(${CMAKE_COMMAND} -S ${SOURCE}/consumer -B ${BUILD}/package-test/without-cuda -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
run(${CMAKE_COMMAND} --build ${BUILD}/package-test/without-cuda)
run(${BUILD}/package-test/without-cuda/trainer)
