# A loop of one's own, the example train_own_loop, gives the same losses on four ranks however they are started: as
# threads of one process, or as processes, by nothing but the variables that torchrun and others set.
# Usage: cmake -D EXAMPLE=<train_own_loop> -D DATA=<text> -P run_own_loop.cmake
cmake_minimum_required(VERSION 3.25)

# The losses of what was printed, without the ranks that a launcher puts in front.
function(losses_of text result)
  string(REGEX MATCHALL "step [0-9]+  loss [0-9.]+" losses "${text}")
  set(${result} "${losses}" PARENT_SCOPE)
endfunction()

function(expect_same how text)
  losses_of("${text}" losses)
  if(NOT losses STREQUAL expected)
    message(FATAL_ERROR "${how}: the losses are ${losses}, but in one process ${expected}")
  endif()
  message(STATUS "${how}: the same losses")
endfunction()

execute_process(COMMAND "${EXAMPLE}" "${DATA}" OUTPUT_VARIABLE alone COMMAND_ERROR_IS_FATAL ANY)
losses_of("${alone}" expected)
list(LENGTH expected count)
if(NOT count EQUAL 12)
  message(FATAL_ERROR "12 steps should have been told, not: ${alone}")
endif()

# Commands of one execute_process run at the same time. Process 0 is the last: what it prints is the output.
string(RANDOM LENGTH 4 ALPHABET 0123456789 digits)
set(variables WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=2${digits})
set(alone_on_rank ${CMAKE_COMMAND} -E env ${variables})
execute_process(
  COMMAND ${alone_on_rank} RANK=3 "${EXAMPLE}" "${DATA}"
  COMMAND ${alone_on_rank} RANK=2 "${EXAMPLE}" "${DATA}"
  COMMAND ${alone_on_rank} RANK=1 "${EXAMPLE}" "${DATA}"
  COMMAND ${alone_on_rank} RANK=0 "${EXAMPLE}" "${DATA}"
  OUTPUT_VARIABLE scripted TIMEOUT 120 COMMAND_ERROR_IS_FATAL ANY)
expect_same("RANK and WORLD_SIZE" "${scripted}")
