// Runs this test program again with other environment variables, for a test that needs its own
// process.
#pragma once

#include <algorithm>
#include <spawn.h>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace wsync {

// Runs the test `test`, even if it is disabled, with `variables` ("NAME=value") in place of
// variables of the same names. Returns the exit status as waitpid() reports it, or -1 if the
// process cannot be started.
inline int run_again(const std::string& test, std::vector<std::string> variables) {
  const auto name_of = [](std::string_view variable) {
    return variable.substr(0, variable.find('='));
  };
  const std::size_t own = variables.size();
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (std::none_of(variables.begin(), variables.begin() + static_cast<std::ptrdiff_t>(own),
                     [&](const std::string& v) { return name_of(v) == name_of(*variable); }))
      variables.emplace_back(*variable);
  std::vector<std::string> arguments = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                                        "--gtest_filter=" + test};
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (auto& text : texts) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  };
  pid_t child = 0;
  if (::posix_spawn(&child, arguments[0].c_str(), nullptr, nullptr, pointers(arguments).data(),
                    pointers(variables).data()) != 0)
    return -1;
  int status = 0;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

}  // namespace wsync
