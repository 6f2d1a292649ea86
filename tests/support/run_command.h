// Runs a command of a wsync program in this process and captures its output.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "shared/command/program.h"
#include "tests/support/captured_log.h"

namespace wsync::cli::test {

struct CommandRun {
  int exit_code = 0;
  std::string out;
  std::string err;
};

inline CommandRun run_command(const ProgramSpec& program,
                              const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"wsync"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStdout();
  wsync::test::capture_log();
  CommandRun run;
  run.exit_code = run_program(program, static_cast<int>(argv.size()), argv.data());
  run.out = testing::internal::GetCapturedStdout();
  run.err = wsync::test::captured_log();
  return run;
}

// A new directory of mode 0700. The destructor removes it with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_(testing::TempDir() + "wsync-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace wsync::cli::test
