# SPDX-License-Identifier: Apache-2.0
# cmake -D compiler= -D source= -D include_dir= -P must_not_compile.cmake
cmake_minimum_required(VERSION 3.25)

set(compile ${compiler} -std=c++20 -fsyntax-only -I ${include_dir})
file(STRINGS ${source} expectations REGEX "^// EXPECT: ")
if(NOT expectations)
  message(FATAL_ERROR "${source} has no line '// EXPECT: text of the compiler'")
endif()

execute_process(COMMAND ${compile} ${source}
  RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(rc EQUAL 0)
  message(FATAL_ERROR "${source} compiles, but must not")
endif()
foreach(expectation IN LISTS expectations)
  string(REGEX REPLACE "^// EXPECT: " "" expectation "${expectation}")
  string(FIND "${output}" "${expectation}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "${source} fails without the text\n  ${expectation}\nThe compiler says:\n${output}")
  endif()
endforeach()

file(STRINGS ${source} corrected REGEX "DYNBATCH_TEST_CORRECTED")
if(corrected)
  execute_process(COMMAND ${compile} -DDYNBATCH_TEST_CORRECTED ${source}
    RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "${source} doesn't compile with DYNBATCH_TEST_CORRECTED either:\n${output}")
  endif()
endif()
