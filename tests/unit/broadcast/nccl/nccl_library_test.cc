// Where NCCL is looked for, and what is said of what is found there. The library that is found is
// the emulated NCCL.
#include "shared/broadcast/nccl_library.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/broadcast/nccl/library.h"

namespace wsync::collective::nccl {
namespace {

using ::testing::HasSubstr;

// A variable of the environment for the life of a test.
class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* was = std::getenv(name)) was_ = was;
    set(value);
  }
  ~Variable() { set(was_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value)
      ::setenv(name_, value->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> was_;
};

std::string refusal(const std::vector<std::filesystem::path>& places) {
  const auto loaded = load_nccl(places);
  EXPECT_FALSE(loaded);
  if (loaded) return {};
  EXPECT_EQ(loaded.error().code(), ErrorCode::kRefused);
  return loaded.error().message();
}

TEST(NcclLibrary, IsFoundAndSaysItsVersion) {
  const Variable version("WSYNC_EMULATED_NCCL_VERSION", "22707");
  const auto loaded = load_nccl({"/nonexistent/libnccl.so.2", WSYNC_EMULATED_NCCL});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  EXPECT_EQ(loaded->version, 22707U);
  EXPECT_EQ(std::filesystem::canonical(loaded->path),
            std::filesystem::canonical(WSYNC_EMULATED_NCCL));
}

TEST(NcclLibrary, ItsAbsenceNamesEveryPlace) {
  const auto said = refusal({"libnothing-of-the-kind.so.2", "/nonexistent/libnccl.so.2"});
  EXPECT_THAT(said, HasSubstr("libnothing-of-the-kind.so.2 in the system's library path"));
  EXPECT_THAT(said, HasSubstr("/nonexistent/libnccl.so.2"));
  EXPECT_THAT(said, HasSubstr("set WSYNC_NCCL_LIBRARY"));
}

TEST(NcclLibrary, ARelativePathIsRefused) {
  EXPECT_THAT(refusal({"some/libnccl.so.2"}), HasSubstr("expected an absolute path"));
}

TEST(NcclLibrary, ATooOldOneIsNamed) {
  const Variable version("WSYNC_EMULATED_NCCL_VERSION", "21602");
  const auto said = refusal({WSYNC_EMULATED_NCCL});
  EXPECT_THAT(said, HasSubstr("is NCCL 2.16.2, which is too old"));
  EXPECT_THAT(said, HasSubstr("2.18.0 or newer"));
}

TEST(NcclLibrary, WhatIsNoNcclIsNamed) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("nccl-{}", ::getpid());
  std::filesystem::create_directory(path);
  const auto text = path / "libnccl.so.2";
  std::ofstream(text) << "not a library";
  EXPECT_THAT(refusal({text}), HasSubstr("cannot be loaded"));
  EXPECT_THAT(refusal({"libm.so.6"}), HasSubstr("libm.so.6 has no ncclGetVersion"));
  std::filesystem::remove_all(path);
}

TEST(NcclLibrary, TheVariableIsTheOnlyPlace) {
  const Variable named("WSYNC_NCCL_LIBRARY", "/opt/libnccl.so.2");
  EXPECT_EQ(nccl_places(), std::vector<std::filesystem::path>{"/opt/libnccl.so.2"});
}

TEST(NcclLibrary, PythonPackagesAreLookedInLast) {
  const auto prefix = std::filesystem::temp_directory_path() / fmt::format("py-{}", ::getpid());
  const auto folder = prefix / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl" / "lib";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libnccl.so.2") << "a library";
  std::filesystem::create_directory(prefix / "bin");
  std::ofstream(prefix / "bin" / "python3") << "a program";
  const Variable named("WSYNC_NCCL_LIBRARY", std::nullopt);
  const Variable path("PATH", "/nonexistent:" + (prefix / "bin").string());
  {
    const Variable environment("VIRTUAL_ENV", std::nullopt);
    const auto places = nccl_places();
    EXPECT_EQ(places.front(), "libnccl.so.2");
    EXPECT_EQ(places.back(), folder / "libnccl.so.2");
  }
  const Variable environment("VIRTUAL_ENV", prefix.string());
  const auto places = nccl_places();
  EXPECT_EQ(std::count(places.begin(), places.end(), folder / "libnccl.so.2"), 1) << "not twice";
  std::filesystem::remove_all(prefix);
}

TEST(NcclLibrary, VersionsAreReadAsNcclWritesThem) {
  EXPECT_EQ(nccl_version_text(22707), "2.27.7");
  EXPECT_EQ(nccl_version_text(21800), "2.18.0");
  EXPECT_EQ(nccl_version_text(2804), "2.8.4");
}

}  // namespace
}  // namespace wsync::collective::nccl
