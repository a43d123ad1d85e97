# SPDX-License-Identifier: Apache-2.0
# Layers of design.md section 1: a header includes its own layer or lower ones, nobody includes
# another layer's detail/, and public headers include nothing but dynbatch and the standard library.
# cmake -D include_dir=<folder with dynbatch/> -P layers.cmake
cmake_minimum_required(VERSION 3.25)

set(below_base base)
set(below_model base)
set(below_concepts base model)
set(below_overlap base model concepts)
foreach(policy batch microbatch expert kv)
  set(below_${policy} base model concepts overlap)
endforeach()
set(below_scheduler base model concepts overlap batch microbatch expert kv)
set(below_cluster ${below_scheduler} scheduler)
set(below_sim ${below_cluster} cluster)
set(below_cuda base model overlap)
set(below_laws ${below_scheduler} scheduler)
set(host_layers ${below_sim} sim)

set(standard_headers
  algorithm any array atomic barrier bit bitset charconv chrono codecvt compare complex concepts
  condition_variable coroutine deque exception execution filesystem forward_list fstream functional
  future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map
  memory memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex
  scoped_allocator semaphore set shared_mutex source_location span sstream stack stdexcept stop_token
  streambuf string string_view syncstream system_error thread tuple type_traits typeindex typeinfo
  unordered_map unordered_set utility valarray variant vector version
  cassert cctype cerrno cfenv cfloat cinttypes climits clocale cmath csetjmp csignal cstdarg cstddef
  cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype)
# Heavy, and not needed by plain structs and concepts.
set(heavy_headers functional iostream chrono ranges memory regex)

execute_process(
  COMMAND grep -rnE "^[ \t]*#[ \t]*include" dynbatch --include=*.hpp
  WORKING_DIRECTORY ${include_dir}
  OUTPUT_VARIABLE lines RESULT_VARIABLE rc)
if(rc GREATER 1)
  message(FATAL_ERROR "grep failed in ${include_dir}")
endif()
string(REGEX REPLACE "[ \t]*(//[^\n]*)?\n" ";" lines "${lines}")

set(offences "")
set(num_includes 0)
foreach(line IN LISTS lines)
  if(line STREQUAL "")
    continue()
  endif()
  math(EXPR num_includes "${num_includes} + 1")
  if(NOT line MATCHES "^(dynbatch/[^:]+):([0-9]+):[ \t]*#[ \t]*include[ \t]*<([^>]+)>$")
    string(APPEND offences "${line}: public headers include <...> only\n")
    continue()
  endif()
  set(where "include/${CMAKE_MATCH_1}:${CMAKE_MATCH_2}")
  set(header ${CMAKE_MATCH_1})
  set(included ${CMAKE_MATCH_3})

  set(layer "")
  if(header MATCHES "^dynbatch/([^/]+)/")
    set(layer ${CMAKE_MATCH_1})
    if(NOT DEFINED below_${layer})
      string(APPEND offences "${where}: unknown layer '${layer}'\n")
      continue()
    endif()
    set(allowed ${below_${layer}} ${layer})
  else()
    set(allowed ${host_layers})
  endif()

  if(included MATCHES "^dynbatch/([^/]+)/(detail/)?")
    set(other ${CMAKE_MATCH_1})
    if(NOT other IN_LIST allowed)
      list(JOIN allowed ", " text)
      string(APPEND offences "${where}: <${included}> is not below this header (allowed: ${text})\n")
    elseif(CMAKE_MATCH_2 AND NOT other STREQUAL layer)
      string(APPEND offences "${where}: <${included}> is private to its layer\n")
    elseif(NOT EXISTS ${include_dir}/${included})
      string(APPEND offences "${where}: <${included}> does not exist\n")
    endif()
  elseif(included MATCHES "^dynbatch/")
    string(APPEND offences "${where}: <${included}> is for users, not for headers\n")
  elseif(NOT included IN_LIST standard_headers)
    string(APPEND offences "${where}: <${included}> is not a header of standard C++\n")
  elseif(layer MATCHES "^(concepts|model)$" AND included IN_LIST heavy_headers)
    string(APPEND offences "${where}: <${included}> is too heavy for ${layer}/\n")
  endif()
endforeach()

if(offences)
  message(FATAL_ERROR "layer check failed\n${offences}")
endif()
message(STATUS "${num_includes} includes keep to the layers")
