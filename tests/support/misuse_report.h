// The emulated driver and the emulated NCCL record every call that NVIDIA's libraries would answer
// with undefined behaviour. MisuseReport fails the test program if there is such a record. Use one
// environment per test program.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>

namespace wsync {

// WSYNC_EMULATED_CUDA_REPORT names the report file. Empty: the process makes its GPU fail on
// purpose. Not set: the test runs on a real GPU.
class MisuseReport final : public testing::Environment {
 public:
  // Removes the report of an earlier run that crashed. Child processes append to the report of
  // their parent.
  void SetUp() override {
    if (!GTEST_FLAG_GET(also_run_disabled_tests)) std::filesystem::remove(path());
  }
  void TearDown() override {
    if (path().empty()) return;
    std::ifstream file(path());
    std::stringstream said;
    said << file.rdbuf();
    EXPECT_EQ(said.str(), "") << "misuse of the driver or of NCCL";
  }

 private:
  static std::string path() {
    const char* named = std::getenv("WSYNC_EMULATED_CUDA_REPORT");
    return named == nullptr ? "" : named;
  }
};

}  // namespace wsync
