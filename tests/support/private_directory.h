// A directory of a test's own, removed with all that is in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>

namespace wsync {

class PrivateDirectory {
 public:
  explicit PrivateDirectory(const std::string& name) {
    std::string path = ::testing::TempDir() + name + "_XXXXXX";
    if (::mkdtemp(path.data()) == nullptr)
      ADD_FAILURE() << path << " cannot be made";
    else
      path_ = path;
  }
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  ~PrivateDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace wsync
