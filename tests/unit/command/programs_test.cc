// How one program finds another.
#include "shared/command/programs.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

namespace wsync::cli {
namespace {

TEST(Programs, AreLookedForInAbsoluteFoldersOfThePathOnly) {
  const std::string directory = testing::TempDir() + "wsync-programs-test";
  std::filesystem::create_directories(directory);
  const std::string file = directory + "/made-up";
  std::filesystem::remove(file);
  std::ofstream(file) << "#!/bin/sh\n";
  EXPECT_FALSE(find_program("made-up", directory));  // not executable
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  EXPECT_EQ(find_program("made-up", "/nonexistent::relative:" + directory), file);
  EXPECT_FALSE(find_program("made-up", ""));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace wsync::cli
