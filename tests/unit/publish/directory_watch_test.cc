#include "trainer_side/publish/directory_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include "tests/unit/weights/weights_files.h"

namespace wsync::publish {
namespace {

using test::TemporaryDirectory;
using ::testing::ElementsAre;

void complete(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  test::write_file(
      directory / "model.safetensors",
      test::safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "d"));
}

// Directories that appear while it may not look, and while their owner is told of another one.
TEST(DirectoryWatch, ReportsTheNewestCompleteDirectoryAndPassesOverTheOthers) {
  const TemporaryDirectory temporary;
  const std::filesystem::path parent = temporary.path();
  const auto step = [&](int number) { return parent / ("step_" + std::to_string(number)); };
  complete(step(1));
  complete(step(2));
  complete(parent / "step_x");
  const auto loop = Loop::create().value();
  int asked = 0;
  std::vector<std::uint64_t> found;
  const auto may_look = [&] {
    if (++asked == 2) {
      for (const int number : {3, 4}) complete(step(number));
      std::filesystem::create_directory(step(5));  // not complete
    }
    return asked > 2;
  };
  const DirectoryWatch watch(*loop, step(1), may_look,
                             [&](const std::filesystem::path& directory, std::uint64_t number) {
                               EXPECT_EQ(directory, step(static_cast<int>(number)));
                               found.push_back(number);
                               if (number == 4)
                                 for (const int later : {7, 5, 6}) complete(step(later));
                               if (number != 4) loop->stop();
                             });
  loop->run();
  EXPECT_THAT(found, ElementsAre(4, 7));
}

}  // namespace
}  // namespace wsync::publish
