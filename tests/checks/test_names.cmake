# SPDX-License-Identifier: Apache-2.0
# Test names are sentences of letters, digits, space and , . ' - only: with other characters Catch2
# 2.13 and CTest disagree about names, and a test that never ran counts as passed.
# cmake -D tests_dir=<tests> -P test_names.cmake
cmake_minimum_required(VERSION 3.25)

set(offences "")
set(num_names 0)
file(GLOB_RECURSE sources RELATIVE ${tests_dir} ${tests_dir}/*.cpp ${tests_dir}/*.hpp)
list(FILTER sources EXCLUDE REGEX "^(consumers|compile_fail)/")
foreach(source IN LISTS sources)
  file(READ ${tests_dir}/${source} text)
  # These mean something in lists of CMake.
  string(ASCII 1 semicolon)
  string(ASCII 2 open)
  string(ASCII 3 close)
  string(REPLACE ";" "${semicolon}" text "${text}")
  string(REPLACE "[" "${open}" text "${text}")
  string(REPLACE "]" "${close}" text "${text}")
  string(REGEX MATCHALL "(TEST_CASE|SCENARIO)(_METHOD|_PRODUCT|_SIG|_LIST)*\\([^\"()]*\"[^\"\n]*\""
    cases "${text}")
  foreach(case IN LISTS cases)
    math(EXPR num_names "${num_names} + 1")
    string(REGEX REPLACE "^[^\"]*\"(.*)\"$" "\\1" name "${case}")
    if(NOT name MATCHES "^[A-Za-z0-9 ,.'-]+$")
      string(REPLACE "${semicolon}" "<semicolon>" name "${name}")
      string(REPLACE "${open}" "<open bracket>" name "${name}")
      string(REPLACE "${close}" "<close bracket>" name "${name}")
      string(APPEND offences "tests/${source}: ${name}\n")
    endif()
  endforeach()
endforeach()

if(offences)
  message(FATAL_ERROR "test names with other characters than letters, digits, space , . ' -\n"
                      "${offences}")
endif()
message(STATUS "${num_names} test names are sound")
