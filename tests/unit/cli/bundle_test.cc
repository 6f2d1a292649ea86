// `wsync bundle`: what goes in, what stays out, what is said of it.
#include <csignal>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <sys/resource.h>
#include <sys/stat.h>

#include "deploy/cli/archive_file.h"
#include "deploy/cli/bundle_config.h"
#include "deploy/cli/bundle_files.h"
#include "deploy/cli/commands.h"
#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/command/context.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ShownConfig, KnownKeysAreShownAndSecretsAreNot) {
  const auto shown = shown_config(
      "# hunter2\n"
      "run_dir: /run/w\n"
      "api_token: hunter2\n"
      "control:\n"
      "  curve:\n"
      "    secret_key: hunter2\n"
      "rollout:\n"
      "  engines: [\"http://user:hunter2@h:80/v1?key=hunter2\", http://plain:80]\n",
      "trainer.yaml");
  ASSERT_TRUE(shown.has_value()) << shown.error().message();
  EXPECT_EQ(shown->text,
            "run_dir: /run/w\n"
            "api_token: (withheld)  # not a key of wsync\n"
            "control.curve.secret_key: (withheld)  # not a key of wsync\n"
            "rollout.engines: http://(withheld)@h:80/v1?(withheld), http://plain:80\n");
  EXPECT_EQ(shown->values.at("run_dir"), "/run/w");
}

TEST(ShownConfig, WhatCannotBeReadIsRefusedWithoutItsContent) {
  for (const std::string text : {"a: !hunter2 x\n", "hunter2\n", "a: [hunter2\n",
                                 "password: [hunter2]\n", "a: 'hunter2\n"}) {
    const auto shown = shown_config(text, "f.yaml");
    ASSERT_FALSE(shown.has_value()) << text;
    EXPECT_THAT(shown.error().message(), AllOf(HasSubstr("f.yaml"), Not(HasSubstr("hunter2"))));
  }
}

TEST(ShownConfig, VariablesAsKeys) {
  EXPECT_EQ(shown_environment({{"WSYNC_RUN_DIR", "/run/w"},
                               {"WSYNC_PASSWORD", "hunter2"},
                               {"WSYNC_ROLLOUT_ENGINES", "http://u:hunter2@h"}}),
            "WSYNC_PASSWORD=(withheld)  # not a key of wsync\n"
            "WSYNC_ROLLOUT_ENGINES=http://(withheld)@h\n"
            "WSYNC_RUN_DIR=/run/w\n");
}

TEST(ShownConfig, CredentialsOfUrls) {
  EXPECT_EQ(without_credentials("tcp://127.0.0.1:5"), "tcp://127.0.0.1:5");
  EXPECT_EQ(without_credentials("http://a:b@c@h/p@q"), "http://(withheld)@h/p@q");
  EXPECT_EQ(without_credentials("http://h?x=a@b"), "http://h?(withheld)");
  EXPECT_EQ(without_credentials("http://h#x"), "http://h?(withheld)");
  EXPECT_EQ(without_credentials("a@b"), "a@b");
}

TEST(BundleFiles, NamesAreSafe) {
  EXPECT_EQ(file_name_of("a-b_c.1"), "a-b_c.1");
  EXPECT_EQ(file_name_of("../x y\xff"), ".._x_y_");
  EXPECT_EQ(file_name_of(".."), "_");
  EXPECT_EQ(file_name_of(""), "_");
  EXPECT_EQ(file_name_of(std::string(300, 'a')).size(), 80U);
}

TEST(BundleFiles, OnlyTheEndOfALongLogAndNoLongTrace) {
  const TemporaryDirectory directory;
  auto archive = ArchiveFile::create(directory.path() + "/x.tar.gz");
  ASSERT_TRUE(archive.has_value()) << archive.error().message();
  BundleFiles files(**archive, "f");
  const std::string path = directory.path() + "/long";
  write_text(path, "0123456789");
  ASSERT_TRUE(files.add_file("log/1", path, 4, BundleFiles::TooLong::kEndOnly).has_value());
  EXPECT_EQ(files.files().back().at("bytes"), 4);
  EXPECT_EQ(files.files().back().at("bytes_left_out_before"), 6);
  ASSERT_TRUE(files.add_file("trace/1", path, 9, BundleFiles::TooLong::kLeaveOut).has_value());
  EXPECT_EQ(files.missing().back().at("why"), "the file has 10 bytes; a bundle accepts at most 9");
  ASSERT_TRUE(files.add_file("trace/1", path, 10, BundleFiles::TooLong::kLeaveOut).has_value());
  EXPECT_EQ(files.files().size(), 2U);
  // A directory, and nothing at all: on the list, and no failure.
  ASSERT_TRUE(files.add_file("d", directory.path(), 9, BundleFiles::TooLong::kEndOnly).has_value());
  EXPECT_EQ(files.missing().back().at("why"), "not a regular file");
  ASSERT_TRUE(files.add_file("n", path + "x", 9, BundleFiles::TooLong::kEndOnly).has_value());
  EXPECT_EQ(files.missing().back().at("what"), path + "x");
  ASSERT_TRUE(files.add_listing("l.txt", path + "x").has_value());
  EXPECT_EQ(files.missing().size(), 4U);
}

TEST(ArchiveFile, AnUnfinishedOneGoesAndAFormOrAFileThatIsThereIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a.tar.gz";
  {
    auto archive = ArchiveFile::create(path);
    ASSERT_TRUE(archive.has_value()) << archive.error().message();
    EXPECT_TRUE((*archive)->add("x", {}, 0).has_value());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  auto archive = ArchiveFile::create(path);
  ASSERT_TRUE((*archive)->finish().has_value());
  archive->reset();
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_THAT(ArchiveFile::create(path).error().message(), HasSubstr("already exists"));
  EXPECT_EQ(ArchiveFile::create(directory.path() + "/a.zip").error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(ArchiveFile::create(directory.path() + "/no/a.tgz").error().code(),
            ErrorCode::kNotFound);
}

// GNU tar reads what was written: sizes around a block, long names, the time.
TEST(ArchiveFile, TarReadsEveryNameAndByte) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a.tgz";
  auto archive = ArchiveFile::create(path);
  ASSERT_TRUE(archive.has_value()) << archive.error().message();
  const std::string longest = std::string(155, 'f') + "/" + std::string(100, 'n');
  std::vector<std::pair<std::string, std::string>> wanted;
  for (const std::size_t bytes : {0U, 1U, 511U, 512U, 513U, 100'000U})
    wanted.emplace_back(fmt::format("f/{}", bytes), std::string(bytes, 'x'));
  wanted.emplace_back(std::string(100, 'a'), "whole");
  wanted.emplace_back(longest, "parted");
  for (const auto& [name, text] : wanted)
    ASSERT_TRUE((*archive)->add(name, std::as_bytes(std::span(text)), 86'400).has_value()) << name;
  for (const std::string& name :
       {std::string(), std::string(101, 'a'), longest + "n", "f/" + std::string(101, 'n')})
    EXPECT_EQ((*archive)->add(name, {}, 0).error().code(), ErrorCode::kInvalidInput) << name;
  const std::uint64_t bytes = (*archive)->finish().value();
  EXPECT_EQ(bytes, std::filesystem::file_size(path));
  ASSERT_EQ(std::system(fmt::format("cd {} && tar -xzf a.tgz", directory.path()).c_str()), 0);
  for (const auto& [name, text] : wanted) {
    std::ifstream file(directory.path() + "/" + name, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text) << name;
    struct stat status{};
    ASSERT_EQ(::stat((directory.path() + "/" + name).c_str(), &status), 0) << name;
    EXPECT_EQ(status.st_mtime, 86'400) << name;
    EXPECT_EQ(status.st_mode & 07777U, 0600U) << name;
  }
}

// A disc that takes no more, at the first write and at the last.
TEST(ArchiveFile, AFullDiscIsAnErrorAndLeavesNothing) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a.tgz";
  std::string text(4'000'000, 'x');
  std::mt19937 random(1);
  for (char& c : text) c = static_cast<char>(random());
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  for (const bool late : {false, true}) {
    auto archive = ArchiveFile::create(path);
    ASSERT_TRUE(archive.has_value()) << archive.error().message();
    const struct rlimit full{.rlim_cur = 5, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
    const auto bytes = std::as_bytes(std::span(text)).first(late ? 10 : text.size());
    Result<> added = (*archive)->add("x", bytes, 0);
    if (added && late)
      added = (*archive)->finish().and_then([](std::uint64_t) { return Result<>(); });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_FALSE(added) << late;
    EXPECT_THAT(added.error().message(), HasSubstr("File too large"));
    archive->reset();
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  std::signal(SIGXFSZ, ignored);
}

// Nothing runs. The archive is read with tar, as its reader would.
TEST(Bundle, SaysWhatIsMissingAndTellsNoSecret) {
  const TemporaryDirectory directory;
  const std::string& d = directory.path();
  write_text(d + "/sidecar.yaml", "name: s7\npassword: hunter2\nrun_dir: " + d +
                                      "/run\nstate_dir: " + d + "/state\ntrace_file: " + d +
                                      "/trace\n");
  write_text(d + "/bad.yaml", "hunter2: [\n");
  write_text(d + "/trace.json", "[]");
  write_text(d + "/log", "a line\n");
  std::filesystem::create_directories(d + "/state/default");
  write_text(d + "/state/default/coordinator.decisions", "12345678");
  write_text(d + "/state/private.pem", "hunter2");
  ::setenv("WSYNC_PASSWORD", "hunter2", 1);
  const auto run = run_command(
      service_program(), {"bundle", "-o", d + "/b.tar.gz", "-c", d + "/sidecar.yaml", "-c",
                          d + "/bad.yaml", "--log", d + "/log", "--log", d + "/no-log", "--json"});
  ::unsetenv("WSYNC_PASSWORD");
  ASSERT_EQ(run.exit_code, kExitOk) << run.out << run.err;
  const nlohmann::json result = nlohmann::json::parse(run.out).at("result");
  const std::string out = d + "/out";
  std::filesystem::create_directories(out);
  ASSERT_EQ(
      std::system(fmt::format("tar -xzf {}/b.tar.gz -C {} --strip-components=1", d, out).c_str()),
      0);
  std::ifstream manifest_file(out + "/manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(manifest_file);
  EXPECT_EQ(manifest.at("schema"), 1);
  EXPECT_EQ(manifest.at("missing"), result.at("missing"));
  // Every file of the list is there with its bytes, and nothing else is.
  std::size_t found = 0;
  std::string everything;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out)) {
    if (!entry.is_regular_file()) continue;
    ++found;
    const Bytes bytes = read_small_file(entry.path(), 1 << 20).value();
    everything.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EXPECT_EQ(found, manifest.at("files").size() + 1);
  for (const nlohmann::json& file : manifest.at("files"))
    EXPECT_EQ(std::filesystem::file_size(out + "/" + file.at("name").get<std::string>()),
              file.at("bytes"));
  EXPECT_THAT(everything, Not(HasSubstr("hunter2")));
  EXPECT_THAT(everything, AllOf(HasSubstr("name: s7\n"), HasSubstr("a line"), HasSubstr("12345678"),
                                HasSubstr("WSYNC_PASSWORD=(withheld)"), HasSubstr("private.pem")));
  EXPECT_TRUE(std::filesystem::exists(out + "/trace/4-trace.json")) << run.out;
  const std::string missing = manifest.at("missing").dump();
  EXPECT_THAT(missing, AllOf(HasSubstr("bad.yaml"), HasSubstr("no-log"),
                             HasSubstr("the status of ipc://" + d + "/run/control"),
                             HasSubstr("no process answers"), HasSubstr(d + "/run\"")));
}

}  // namespace
}  // namespace wsync::cli
