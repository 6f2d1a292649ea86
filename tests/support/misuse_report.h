// What the emulated driver and the emulated NCCL have to say against a whole run: they write down
// what NVIDIA's would answer with undefined behaviour. One environment of a test program.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>

namespace wsync {

// The report's file is WSYNC_EMULATED_CUDA_REPORT. Empty: a process whose GPU fails by intention.
// Not set: on a real GPU.
class MisuseReport final : public testing::Environment {
 public:
  // Of a run that crashed. Children add to their parent's.
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
