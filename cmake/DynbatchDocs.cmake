# SPDX-License-Identifier: Apache-2.0
# Target docs: the reference of the public headers and the pages of docs/, in <build>/html.
# A warning of Doxygen is an error.

find_package(Doxygen 1.9.4 QUIET)
if(NOT DOXYGEN_FOUND)
  message(STATUS "dynbatch: Doxygen not found, the target docs is left out (Debian: doxygen)")
  return()
endif()
configure_file(docs/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY)
add_custom_target(docs
  COMMAND ${DOXYGEN_EXECUTABLE} ${PROJECT_BINARY_DIR}/Doxyfile
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  COMMENT "Reference in ${PROJECT_BINARY_DIR}/html/index.html"
  VERBATIM)
