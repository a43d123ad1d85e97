// SPDX-License-Identifier: Apache-2.0
#include "tool/tool.hpp"

#include <iostream>
#include <string>
#include <unistd.h>
#include <vector>

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  return dynbatch::tool::run_tool(args, std::cout, std::cerr, is_terminal);
}
