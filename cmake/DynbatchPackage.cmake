# SPDX-License-Identifier: Apache-2.0
# The CMake package: one file of targets a component, so that a consumer of one component never
# needs the dependencies of another. Written for the build tree always (use
# -Ddynbatch_DIR=<build>), installed with DYNBATCH_INSTALL.

include(CMakePackageConfigHelpers)

set(dynbatch_components)
foreach(component headers laws dynbatch cuda)
  if(TARGET dynbatch_${component})
    list(APPEND dynbatch_components ${component})
  endif()
endforeach()

set(dynbatch_fmt_is_needed OFF)
if(TARGET dynbatch_dynbatch)
  get_target_property(type dynbatch_dynbatch TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    set(dynbatch_fmt_is_needed ON)
  endif()
endif()

list(JOIN dynbatch_components " " dynbatch_components_text)
configure_file(cmake/dynbatch-config.cmake.in dynbatch-config.cmake @ONLY)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dynbatch-config-version.cmake
  COMPATIBILITY SameMinorVersion)
foreach(component IN LISTS dynbatch_components)
  export(TARGETS dynbatch_${component} NAMESPACE dynbatch::
    FILE ${PROJECT_BINARY_DIR}/dynbatch-${component}-targets.cmake)
endforeach()

if(NOT DYNBATCH_INSTALL)
  return()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dynbatch)
foreach(component IN LISTS dynbatch_components)
  install(TARGETS dynbatch_${component} EXPORT dynbatch-${component}
    RUNTIME COMPONENT ${component}
    LIBRARY COMPONENT ${component}
    ARCHIVE COMPONENT ${component}
    FILE_SET HEADERS COMPONENT ${component})
  install(EXPORT dynbatch-${component} NAMESPACE dynbatch::
    FILE dynbatch-${component}-targets.cmake
    DESTINATION ${package_dir} COMPONENT ${component})
endforeach()
install(FILES
  ${PROJECT_BINARY_DIR}/dynbatch-config.cmake ${PROJECT_BINARY_DIR}/dynbatch-config-version.cmake
  DESTINATION ${package_dir} COMPONENT headers)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT headers)
if(TARGET dynbatch_tool)
  install(TARGETS dynbatch_tool RUNTIME COMPONENT tool)
endif()
