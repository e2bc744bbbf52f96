# Runs PROGRAM with a new, empty DIRECTORY as its argument, and removes that.
file(REMOVE_RECURSE ${DIRECTORY})
file(MAKE_DIRECTORY ${DIRECTORY})
execute_process(COMMAND ${PROGRAM} ${DIRECTORY} RESULT_VARIABLE result)
file(REMOVE_RECURSE ${DIRECTORY})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} has ended with ${result}")
endif()
