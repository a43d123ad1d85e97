# SPDX-License-Identifier: Apache-2.0
# How the targets of this project are made.

set(dynbatch_warnings
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wundef
  -Wnon-virtual-dtor -Woverloaded-virtual -Wdouble-promotion -Wextra-semi
  $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond>
  $<$<CXX_COMPILER_ID:GNU>:-Wlogical-op>
  $<$<CXX_COMPILER_ID:GNU>:-Wuseless-cast>)

# dynbatch_add_interface_library(NAME FILES headers...): target dynbatch_NAME, alias dynbatch::NAME.
function(dynbatch_add_interface_library name)
  cmake_parse_arguments(arg "" "" FILES ${ARGN})
  add_library(dynbatch_${name} INTERFACE)
  add_library(dynbatch::${name} ALIAS dynbatch_${name})
  set_target_properties(dynbatch_${name} PROPERTIES EXPORT_NAME ${name})
  dynbatch_add_headers(dynbatch_${name} INTERFACE ${arg_FILES})
endfunction()

# dynbatch_add_headers(TARGET SCOPE headers...): the public headers of a target.
function(dynbatch_add_headers target scope)
  target_sources(${target} ${scope}
    FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${ARGN})
endfunction()

# dynbatch_set_defaults(TARGET): flags of our own compiled targets, never passed on to users.
# The full set of warnings is for the library and the tool; tests, examples and benchmarks
# (dynbatch_set_defaults(TARGET TEST)) get it with DYNBATCH_PEDANTIC_TESTS.
function(dynbatch_set_defaults target)
  cmake_parse_arguments(arg "TEST" "" "" ${ARGN})
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  if(arg_TEST AND NOT DYNBATCH_PEDANTIC_TESTS)
    set(flags -Wall -Wextra)
  else()
    set(flags ${dynbatch_warnings})
  endif()
  # clang reports the deprecated std::get_temporary_buffer inside libstdc++'s own stable_sort.
  list(APPEND flags $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
  if(DYNBATCH_WERROR)
    list(APPEND flags -Werror)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
endfunction()

# The best library there is for examples and benchmarks: the compiled one if it is built.
function(dynbatch_link target)
  if(TARGET dynbatch_dynbatch)
    target_link_libraries(${target} PRIVATE dynbatch::dynbatch)
  else()
    target_link_libraries(${target} PRIVATE dynbatch::headers)
  endif()
endfunction()
