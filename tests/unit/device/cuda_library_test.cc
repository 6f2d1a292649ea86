// Where libwsync_cuda.so is looked for, and what is said of one that cannot be used. Loading
// happens once in a process, so each case is a process, or a library of its own with the loader
// inside.
#include "shared/device/cuda_library.h"

#include <array>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/broadcast/nccl_library.h"

namespace wsync::device {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// A new folder, removed with what is in it; canonical, as the loader names it.
class Folder {
 public:
  Folder() {
    std::string pattern = testing::TempDir() + "wsync-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = fs::canonical(pattern);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

std::string cuda_answer() {
  const auto backend = cuda_backend();
  if (backend) return "loaded";
  return std::string(error_code_name(backend.error().code())) + ": " + backend.error().message();
}

// What `ask` says in a child process that has `variable` as WSYNC_CUDA_LIBRARY.
std::string asked_with(const std::string& variable, std::string (*ask)() = cuda_answer) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("WSYNC_CUDA_LIBRARY", variable.c_str(), 1);
    const std::string answer = ask();
    const bool written =
        ::write(ends[1], answer.data(), answer.size()) == static_cast<ssize_t>(answer.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string answer;
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; (got = ::read(ends[0], piece.data(), piece.size())) > 0;)
    answer.append(piece.data(), static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return answer;
}

// What the loader says that is inside a library at `at`.
std::string asked_inside(const fs::path& at) {
  fs::create_directories(at.parent_path());
  fs::copy_file(WSYNC_TEST_ASKS, at);
  void* handle = ::dlopen(at.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return ::dlerror();
  const auto ask = reinterpret_cast<const char* (*)()>(::dlsym(handle, "wsync_test_ask"));
  return ask == nullptr ? "no wsync_test_ask" : ask();
}

void put_wrong_library(const fs::path& at) {
  fs::create_directories(at.parent_path());
  fs::copy_file(WSYNC_TEST_NO_ENTRY, at);
}

TEST(CudaLibrary, AbsentNamesWhereItWasLookedFor) {
  const std::string answer = asked_with("/nonexistent/libwsync_cuda.so");
  EXPECT_EQ(
      answer,
      "refused: device kind cuda needs libwsync_cuda.so, which was not found; looked for "
      "/nonexistent/libwsync_cuda.so; install wsync with its CUDA backend, set WSYNC_CUDA_LIBRARY, "
      "or use host devices (devices.kind: unified or separate; an engine's --device host)");
}

TEST(CudaLibrary, AbsentRefusesTheDeviceAndNcclToo) {
  const auto device = [] {
    const auto made = make_device({.kind = DeviceKind::kCuda});
    return made ? std::string("made") : made.error().message();
  };
  EXPECT_THAT(asked_with("/nonexistent/libwsync_cuda.so", +device), HasSubstr("not found"));
  const auto nccl = [] {
    const auto backend = collective::nccl_backend();
    return backend ? std::string("loaded") : backend.error().message();
  };
  EXPECT_THAT(asked_with("/nonexistent/libwsync_cuda.so", +nccl), HasSubstr("not found"));
}

TEST(CudaLibrary, VariableIsAnAbsolutePath) {
  EXPECT_EQ(asked_with("build/libwsync_cuda.so"),
            "refused: device kind cuda: WSYNC_CUDA_LIBRARY is 'build/libwsync_cuda.so', expected "
            "the absolute path of libwsync_cuda.so");
}

TEST(CudaLibrary, NoLibraryAtAll) {
  const Folder folder;
  const std::string text = folder.path() / "libwsync_cuda.so";
  std::ofstream(text) << "not a library\n";
  EXPECT_THAT(asked_with(text), HasSubstr(text + " cannot be loaded: "));
  EXPECT_THAT(asked_with(folder.path()), HasSubstr(" cannot be loaded: "));
}

TEST(CudaLibrary, MissingSymbolIsNamed) {
  const std::string answer = asked_with(WSYNC_TEST_MISSING_SYMBOL);
  EXPECT_THAT(answer, HasSubstr(" cannot be loaded: "));
  EXPECT_THAT(answer, HasSubstr("wsync_function_that_nobody_has"));
}

TEST(CudaLibrary, NoEntryIsNotOurs) {
  const std::string answer = asked_with(WSYNC_TEST_NO_ENTRY);
  EXPECT_THAT(answer, HasSubstr(WSYNC_TEST_NO_ENTRY " has no wsync_cuda_backend"));
}

TEST(CudaLibrary, AnotherBuildIsRefusedWithBoth) {
  for (const char* library :
       {WSYNC_TEST_NO_BACKEND, WSYNC_TEST_OTHER_SIZE, WSYNC_TEST_OTHER_BUILD, WSYNC_TEST_NO_BUILD})
    EXPECT_THAT(asked_with(library), HasSubstr(std::string(library) + " is of another build"));
  EXPECT_THAT(asked_with(WSYNC_TEST_OTHER_SIZE),
              HasSubstr("(size " + std::to_string(sizeof(CudaBackend) + 8) + ", expected " +
                        std::to_string(sizeof(CudaBackend)) + ")"));
  EXPECT_THAT(
      asked_with(WSYNC_TEST_OTHER_BUILD),
      HasSubstr("(build 'wsync 0.0.1, compiler of yesterday', expected '" + cuda_build() + "')"));
  EXPECT_THAT(asked_with(WSYNC_TEST_NO_BUILD), HasSubstr("(build '', expected 'wsync "));
}

class CudaLibraryInside : public testing::Test {
 protected:
  // The loader reads the environment of this process.
  void SetUp() override { ::unsetenv("WSYNC_CUDA_LIBRARY"); }
  Folder folder_;
};

TEST_F(CudaLibraryInside, OwnFolderComesFirst) {
  put_wrong_library(folder_.path() / "bin/libwsync_cuda.so");
  put_wrong_library(folder_.path() / "lib/libwsync_cuda.so");
  EXPECT_THAT(asked_inside(folder_.path() / "bin/libasks.so"),
              HasSubstr((folder_.path() / "bin/libwsync_cuda.so has no").string()));
}

TEST_F(CudaLibraryInside, ThenTheInstallationsLibraries) {
  put_wrong_library(folder_.path() / WSYNC_LIBRARY_FOLDER / "libwsync_cuda.so");
  EXPECT_THAT(
      asked_inside(folder_.path() / "bin/libasks.so"),
      HasSubstr((folder_.path() / WSYNC_LIBRARY_FOLDER / "libwsync_cuda.so has no").string()));
}

TEST_F(CudaLibraryInside, ThenTheSystems) {
  const std::string answer = asked_inside(folder_.path() / "bin/libasks.so");
  EXPECT_THAT(answer, HasSubstr((folder_.path() / "bin/libwsync_cuda.so").string() + ", " +
                                (folder_.path() / WSYNC_LIBRARY_FOLDER).string()));
  EXPECT_THAT(answer, HasSubstr("the system's folders; install"));
  EXPECT_THAT(answer, Not(HasSubstr("/..")));
}

TEST_F(CudaLibraryInside, BehindALinkTheFileItselfCounts) {
  put_wrong_library(folder_.path() / "real/libwsync_cuda.so");
  fs::create_directories(folder_.path() / "linked");
  fs::create_symlink(folder_.path() / "real", folder_.path() / "linked/lib");
  EXPECT_THAT(asked_inside(folder_.path() / "linked/lib/libasks.so"),
              HasSubstr((folder_.path() / "real/libwsync_cuda.so has no").string()));
}

TEST_F(CudaLibraryInside, AskedAgainItSaysTheSame) {
  const std::string first = asked_inside(folder_.path() / "bin/libasks.so");
  put_wrong_library(folder_.path() / "bin/libwsync_cuda.so");
  void* handle = ::dlopen((folder_.path() / "bin/libasks.so").c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(handle, nullptr);
  const auto ask = reinterpret_cast<const char* (*)()>(::dlsym(handle, "wsync_test_ask"));
  ASSERT_NE(ask, nullptr);
  EXPECT_EQ(ask(), first);
}

}  // namespace
}  // namespace wsync::device
