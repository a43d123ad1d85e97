# SPDX-License-Identifier: Apache-2.0
# Copies the headers as another minor version. cmake -D from= -D to= -D minor= -P copy_as_version.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${to})
file(COPY ${from}/ DESTINATION ${to})
set(version ${to}/dynbatch/base/version.hpp)
file(READ ${version} text)
string(REGEX REPLACE "(DYNBATCH_VERSION_MINOR) [0-9]+" "\\1 ${minor}" text "${text}")
file(WRITE ${version} "${text}")
