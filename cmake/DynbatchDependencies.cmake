# SPDX-License-Identifier: Apache-2.0
# Third parties of the compiled library, the tool, examples and benchmarks. All optional: what needs a
# missing one is left out. Looked up here, once, because imported targets are visible in the folder
# of find_package and below. dynbatch::headers needs none of them.

foreach(package fmt nlohmann_json CLI11 benchmark)
  # An enclosing project may have its own copy as a target.
  if(TARGET ${package}::${package})
    set(${package}_FOUND ON)
  elseif(NOT dynbatch_without_exceptions AND
         (PROJECT_IS_TOP_LEVEL OR package MATCHES "^(fmt|nlohmann_json)$"))
    find_package(${package} QUIET)
  endif()
endforeach()
