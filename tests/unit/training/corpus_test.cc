// What text is made of, and that a micro-batch is the same whenever it is asked for.
#include "trainer_side/training/corpus.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <sys/stat.h>

namespace wsync::training {
namespace {

namespace fs = std::filesystem;

class CorpusFiles : public testing::Test {
 protected:
  CorpusFiles() : root_(testing::TempDir() + "wsync-corpus-XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~CorpusFiles() override { fs::remove_all(root_); }
  [[nodiscard]] std::string at(const std::string& name) const { return root_ + "/" + name; }
  void write(const std::string& name, std::string_view text) const {
    fs::create_directories(fs::path(at(name)).parent_path());
    std::ofstream(at(name), std::ios::binary) << text;
  }
  static std::string why(const std::vector<std::string>& files, std::size_t sequence = 1,
                         ErrorCode code = ErrorCode::kInvalidInput) {
    const auto corpus = Corpus::open(files, sequence);
    if (corpus) return "opened";
    EXPECT_EQ(corpus.error().code(), code) << corpus.error().message();
    return corpus.error().message();
  }
  static Digest digest_of_text(std::string_view text) {
    return digest_of(std::as_bytes(std::span(text)));
  }

 private:
  std::string root_;
};

TEST_F(CorpusFiles, FilesEndInAZeroByteAndDirectoriesAreReadByName) {
  write("d/b", "two");
  write("d/a", "one");
  write("d/c", "");
  write("d/sub/ignored", "no");
  write("last", "end");
  const auto corpus = Corpus::open({at("d"), at("last")}, 4);
  ASSERT_TRUE(corpus.has_value()) << corpus.error().message();
  EXPECT_EQ(corpus->bytes(), 13U);
  EXPECT_EQ(corpus->digest(), digest_of_text(std::string_view("one\0two\0\0end\0", 13)));
}

TEST_F(CorpusFiles, WhatIsReachedTwiceIsReadOnce) {
  write("d/GPL-3", "three");
  write("elsewhere", "far");
  fs::create_symlink("GPL-3", at("d/GPL"));
  fs::create_symlink(at("elsewhere"), at("d/z"));
  fs::create_symlink("nothing", at("d/dangling"));
  ASSERT_EQ(mkfifo(at("d/fifo").c_str(), 0600), 0);
  const auto corpus = Corpus::open({at("d"), at("d/GPL-3"), at("elsewhere")}, 4);
  ASSERT_TRUE(corpus.has_value()) << corpus.error().message();
  EXPECT_EQ(corpus->digest(), digest_of_text(std::string_view("three\0far\0", 10)));
}

TEST_F(CorpusFiles, AMicroBatchIsTheSameWheneverItIsAskedFor) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  write("f", text);
  const Corpus corpus = Corpus::open({at("f")}, 5).value();
  const MicroBatch batch = corpus.micro_batch(7, 3, 2, 4, 5);
  EXPECT_EQ(corpus.micro_batch(7, 3, 2, 4, 5), batch);
  EXPECT_EQ(Corpus::open({at("f")}, 5)->micro_batch(7, 3, 2, 4, 5), batch);
  EXPECT_NE(corpus.micro_batch(8, 3, 2, 4, 5), batch);
  EXPECT_NE(corpus.micro_batch(7, 4, 2, 4, 5), batch);
  EXPECT_NE(corpus.micro_batch(7, 3, 3, 4, 5), batch);
  EXPECT_NE(corpus.micro_batch(7, 2, 3, 4, 5), batch);
  EXPECT_EQ(batch.sequence, 5U);
  ASSERT_EQ(batch.tokens.size(), 20U);
  ASSERT_EQ(batch.targets.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(batch.targets[i], (batch.tokens[i] + 1) % 256);  // the end mark follows 255
    if (i % 5 == 0) continue;
    EXPECT_EQ(batch.tokens[i], batch.targets[i - 1]);
  }
}

// Of a text of four bytes and its end mark, windows of two bytes begin at 0, 1 and 2.
TEST_F(CorpusFiles, EveryWindowThatFitsIsTaken) {
  write("f", "abcd");
  const Corpus corpus = Corpus::open({at("f")}, 4).value();
  std::set<std::uint32_t> first;
  for (std::uint64_t step = 1; step <= 100; ++step)
    first.insert(corpus.micro_batch(1, step, 0, 1, 2).tokens[0]);
  EXPECT_EQ(first, (std::set<std::uint32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(corpus.micro_batch(1, 1, 0, 1, 4).targets,
            (std::vector<std::uint32_t>{'b', 'c', 'd', 0}));
}

TEST_F(CorpusFiles, WhatIsNoTextIsNamed) {
  write("f", "abcd");
  EXPECT_EQ(why({at("f")}, 5),
            "training text: expected 6 bytes or more, a sequence of 5 and the byte after it, found "
            "5 in 1 file with their end marks; name more files, or take shorter sequences");
  EXPECT_EQ(why({at("f")}, 4), "opened");
  EXPECT_EQ(why({at("none")}, 1, ErrorCode::kNotFound),
            "cannot read training text " + at("none") + ": No such file or directory");
  fs::create_directory(at("empty"));
  EXPECT_EQ(why({at("empty")}), at("empty") +
                                    ": expected files of training text, found none (directories in "
                                    "it are not read; name them too)");
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_EQ(why({at("fifo")}),
            at("fifo") + ": expected a file or a directory of training text, found something else");
  fs::create_symlink("itself", at("itself"));
  EXPECT_NE(why({at("itself")}, 1, ErrorCode::kIo).find("symbolic links"), std::string::npos);
  write("large", "");
  fs::resize_file(at("large"), kCorpusBytes);  // a hole: no disk is used, and nothing is read
  EXPECT_EQ(why({at("f"), at("large")}),
            at("large") +
                ": with it there are more than 1073741824 bytes of training text, the "
                "limit; name fewer files");
}

TEST(Corpus, WithoutFilesTheLicenceTexts) {
  if (!fs::exists(kLicenceTexts)) GTEST_SKIP() << kLicenceTexts << " is not there";
  const auto corpus = Corpus::open({}, 64);
  ASSERT_TRUE(corpus.has_value()) << corpus.error().message();
  EXPECT_GT(corpus->bytes(), 50'000U);
  EXPECT_EQ(corpus->digest(), Corpus::open({kLicenceTexts}, 64)->digest());
}

}  // namespace
}  // namespace wsync::training
