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
foreach(program storage_only adam_only minimal_trainer custom_update trainer)
  run(${BUILD}/package-test/build/${program})
endforeach()

# A machine without the CUDA toolkit.
run(${CMAKE_COMMAND} -S ${SOURCE}/consumer -B ${BUILD}/package-test/without-cuda -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
run(${CMAKE_COMMAND} --build ${BUILD}/package-test/without-cuda)
run(${BUILD}/package-test/without-cuda/trainer)
