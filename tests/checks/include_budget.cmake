# SPDX-License-Identifier: Apache-2.0
# What including a header costs, in preprocessed lines (style guide section 4), and no <atomic> behind
# a policy header. cmake -D include_dir= -D compiler= -D compiler_id= -P include_budget.cmake
cmake_minimum_required(VERSION 3.25)

if(NOT compiler_id STREQUAL "GNU")
  message("SKIPPED: the budgets are in lines of g++ -E -P, this build uses ${compiler_id}")
  return()
endif()

set(offences "")
set(num_headers 0)

# check(HEADER BUDGET): also sets `dependencies` to all files behind the header.
macro(check header budget)
  math(EXPR num_headers "${num_headers} + 1")
  execute_process(
    COMMAND ${compiler} -std=c++20 -I ${include_dir} -E -P ${include_dir}/${header}
    COMMAND wc -l
    OUTPUT_VARIABLE num_lines ERROR_VARIABLE errors RESULTS_VARIABLE rcs
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT rcs STREQUAL "0;0")
    string(APPEND offences "include/${header}: can't be preprocessed alone\n${errors}\n")
  elseif(num_lines GREATER ${budget})
    string(APPEND offences "include/${header}: ${num_lines} preprocessed lines, budget ${budget}\n")
  endif()
endmacro()

file(GLOB_RECURSE policy_headers RELATIVE ${include_dir}
  ${include_dir}/dynbatch/concepts/*.hpp ${include_dir}/dynbatch/batch/*.hpp
  ${include_dir}/dynbatch/microbatch/*.hpp ${include_dir}/dynbatch/expert/*.hpp
  ${include_dir}/dynbatch/kv/*.hpp)
foreach(header IN LISTS policy_headers)
  # TieredPool is two pools and the traffic with a store, GroupedPool a pool and those of further
  # groups; nobody else includes them.
  if(header MATCHES "kv/(detail/)?(tiered_pool|tier_link|grouped_pool)")
    check(${header} 20000)
  else()
    check(${header} 18000)
  endif()
  execute_process(
    COMMAND ${compiler} -std=c++20 -I ${include_dir} -x c++ -M ${include_dir}/${header}
    OUTPUT_VARIABLE dependencies)
  if(dependencies MATCHES "/atomic[ \n]")
    string(APPEND offences "include/${header}: <atomic> is behind this policy header\n")
  endif()
endforeach()
foreach(pair "scheduler/scheduler.hpp 50000" "dynbatch.hpp 65000")
  separate_arguments(pair)
  list(GET pair 0 header)
  list(GET pair 1 budget)
  if(EXISTS ${include_dir}/dynbatch/${header})
    check(dynbatch/${header} ${budget})
  endif()
endforeach()

if(offences)
  message(FATAL_ERROR "include budget exceeded\n${offences}")
endif()
message(STATUS "${num_headers} headers keep to their budgets")
