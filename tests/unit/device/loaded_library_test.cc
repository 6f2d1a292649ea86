#include "shared/base/loaded_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace wsync {
namespace {

TEST(LoadedLibrary, FoldersAreSearchedOnlyAfterSomethingWasLoaded) {
  LoadedLibrary missing("libwsync-of-nobody.so.1");
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(missing.is_loaded());
  EXPECT_EQ(missing.searches(), 1U);
}

TEST(LoadedLibrary, SeesWhatIsLoadedLater) {
  LoadedLibrary library(WSYNC_TEST_ASKS);
  EXPECT_FALSE(library.is_loaded());
  void* const handle = ::dlopen(WSYNC_TEST_ASKS, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << ::dlerror();
  EXPECT_TRUE(library.is_loaded());
  ::dlclose(handle);
  const auto searches = library.searches();
  EXPECT_TRUE(library.is_loaded()) << "it stays so";
  EXPECT_EQ(library.searches(), searches);
}

}  // namespace
}  // namespace wsync
