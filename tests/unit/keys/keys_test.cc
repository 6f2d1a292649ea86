// The folder of keys: its files, who may read them, and what is refused.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/private_path.h"
#include "shared/control/keys/authorized_keys.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/keys/key_folder.h"
#include "tests/support/run_command.h"

namespace wsync::control {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// Keys without meaning: any 40 characters of Z85 whose groups fit 32 bits.
std::string key_of(char letter) { return std::string(kKeyCharacters, letter); }
const KeyPair kFirst{.public_key = key_of('a'), .secret_key = key_of('b')};
const KeyPair kSecond{.public_key = key_of('c'), .secret_key = key_of('d')};
const KeyPair kThird{.public_key = key_of('e'), .secret_key = key_of('f')};

mode_t mode_of(const fs::path& path) {
  struct stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777U;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

class Keys : public testing::Test {
 protected:
  [[nodiscard]] fs::path path() const { return fs::path(directory_.path()) / "keys"; }
  [[nodiscard]] KeyFolder make() const {
    auto folder = KeyFolder::init(path(), kFirst);
    EXPECT_TRUE(folder.has_value());
    return *std::move(folder);
  }
  cli::test::TemporaryDirectory directory_;
};

TEST(KeyFileText, IsReadAsItWasWritten) {
  for (int i = 0; i <= static_cast<int>(kLastKeyRole); ++i) {
    const auto role = static_cast<KeyRole>(i);
    const bool is_server = role == KeyRole::kCoordinator;
    const KeyFile key{.owner = {.role = role, .name = "host-7.a_b"},
                      .pair = kSecond,
                      .server_key = is_server ? kSecond.public_key : kFirst.public_key};
    const auto read = parse_key_file(key_file_text(key), "x");
    ASSERT_TRUE(read.has_value()) << read.error().message();
    EXPECT_EQ(read->owner, key.owner);
    EXPECT_EQ(read->pair.public_key, key.pair.public_key);
    EXPECT_EQ(read->pair.secret_key, key.pair.secret_key);
    EXPECT_EQ(read->server_key, key.server_key);
  }
}

TEST(KeyFileText, NothingElseIsAKeyAndNoErrorShowsTheSecret) {
  const KeyPair marked{.public_key = key_of('c'), .secret_key = "SECRET" + std::string(34, 's')};
  const std::string good = key_file_text({.owner = {.role = KeyRole::kSidecar, .name = "host7"},
                                          .pair = marked,
                                          .server_key = key_of('a')});
  ASSERT_TRUE(parse_key_file(good, "x").has_value());
  const auto refused = [&](const std::string& text, const std::string& where) {
    const auto read = parse_key_file(text, "x");
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(read.error().message(), HasSubstr(where));
    EXPECT_THAT(read.error().message(), Not(HasSubstr("SECRET")));
  };
  for (std::size_t size = 0; size < good.size(); ++size) refused(good.substr(0, size), "x:");
  refused(good + "\n", "x:7: expected the end");
  refused(good + "secret: " + marked.secret_key + "\n", "x:7: expected the end");
  const auto changed = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  refused(changed("wsync-key: 1", "wsync-key: 2"), "x:1: expected format 1");
  refused(changed("wsync-key", "wsync-kez"), "x:1: expected 'wsync-key: '");
  refused(changed("sidecar", "captain"), "x:2: expected a role");
  refused(changed("sidecar", "coordinator"), "x:5: expected the coordinator's own public half");
  refused(changed("host7", "../host7"), "x:3: expected the name of a key");
  refused(changed("public", "secret"), "x:4: expected 'public: '");
  refused(changed("cccc", "ccc"), "x:4: expected a key of 40 characters");
  refused(changed("aaaa", "aa~a"), "x:5: expected a key of 40 characters");
  refused(changed("SECRET", "#####S"), "x:6: expected a key of 40 characters");
  refused(changed("\npublic", "\r\npublic"), "x:3: expected the name of a key");
}

TEST(KeyFileText, ZeroBytesAndTheGreatestGroupAreKeys) {
  const auto zero = decode_key(key_of('0'));
  ASSERT_TRUE(zero.has_value());
  EXPECT_EQ((*zero)[31], std::byte{0});
  std::string greatest;
  for (int i = 0; i < 8; ++i) greatest += "%nSc0";  // 2^32 - 1
  const auto ones = decode_key(greatest);
  ASSERT_TRUE(ones.has_value());
  for (const std::byte b : *ones) EXPECT_EQ(b, std::byte{0xff});
  greatest.replace(0, 5, "%nSc1");
  EXPECT_FALSE(decode_key(greatest).has_value());
}

TEST(KeyNames, AreFileNamesThatNoTemporaryFileHas) {
  for (const std::string name : {"host7", "a", "0", "host-7.rack_2"})
    EXPECT_TRUE(check_key_name(name).has_value()) << name;
  EXPECT_TRUE(check_key_name(std::string(limits::kReplicaNameBytes, 'x')).has_value());
  for (const std::string name : {"", ".", "..", ".host", "a/b", "a b", "-a", "a\n", "a.lock",
                                 "a.new", "a.old", "h\xc3\xb6st"})
    EXPECT_FALSE(check_key_name(name).has_value()) << name;
  EXPECT_FALSE(check_key_name(std::string(limits::kReplicaNameBytes + 1, 'x')).has_value());
}

TEST_F(Keys, AFolderHasTheCoordinatorsKeyAndIsPrivate) {
  const KeyFolder folder = make();
  EXPECT_EQ(mode_of(path()), 0700U);
  EXPECT_EQ(mode_of(path() / "coordinator.key"), 0600U);
  const auto opened = KeyFolder::open(path());
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_EQ(opened->coordinator().pair.secret_key, kFirst.secret_key);
  EXPECT_EQ(opened->authorized().value().size(), 0U);
  const auto again = KeyFolder::init(path(), kSecond);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(KeyFolder::open(path())->coordinator().pair.public_key, kFirst.public_key);
}

TEST_F(Keys, AFolderThatIsNoneIsRefused) {
  EXPECT_EQ(KeyFolder::open(path()).error().code(), ErrorCode::kNotFound);
  fs::create_directory(path());
  fs::permissions(path(), fs::perms::owner_all);
  const auto empty = KeyFolder::open(path());
  ASSERT_FALSE(empty.has_value());
  EXPECT_EQ(empty.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(empty.error().message(), HasSubstr("wsync keys init"));
  write_text(path() / "coordinator.key",
             key_file_text({.owner = {.role = KeyRole::kReader, .name = "eve"},
                            .pair = kSecond,
                            .server_key = kFirst.public_key}));
  fs::permissions(path() / "coordinator.key", fs::perms::owner_read);
  EXPECT_THAT(KeyFolder::open(path()).error().message(), HasSubstr("found that of reader eve"));
  EXPECT_EQ(KeyFolder::init(path() / "none" / "keys", kFirst).error().code(), ErrorCode::kNotFound);
  write_text(path() / "file", "");
  EXPECT_EQ(KeyFolder::open(path() / "file").error().code(), ErrorCode::kRefused);
}

TEST_F(Keys, AKeyIsListedAndItsFileHasBothHalvesAndTheServers) {
  KeyFolder folder = make();
  const KeyOwner host7{.role = KeyRole::kSidecar, .name = "host7"};
  const auto file = folder.add(host7, kSecond);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(*file, path() / "issued" / "sidecar.host7.key");
  EXPECT_EQ(mode_of(*file), 0600U);
  const auto key = load_key_file(*file);
  ASSERT_TRUE(key.has_value()) << key.error().message();
  EXPECT_EQ(key->owner, host7);
  EXPECT_EQ(key->server_key, kFirst.public_key);
  EXPECT_EQ(text_of(path() / "authorized" / "sidecar" / "host7"), kSecond.public_key + "\n");
  const auto keys = folder.authorized();
  ASSERT_TRUE(keys.has_value()) << keys.error().message();
  ASSERT_NE(keys->find(kSecond.public_key), nullptr);
  EXPECT_EQ(*keys->find(kSecond.public_key), host7);
  EXPECT_EQ(keys->find(kFirst.public_key), nullptr);
  // The same name in another role is another holder.
  EXPECT_TRUE(folder.add({.role = KeyRole::kReader, .name = "host7"}, kThird).has_value());
  EXPECT_EQ(folder.authorized()->size(), 2U);
}

TEST_F(Keys, AnAddThatIsRefusedChangesNothing) {
  KeyFolder folder = make();
  const KeyOwner host7{.role = KeyRole::kSidecar, .name = "host7"};
  const fs::path elsewhere = fs::path(directory_.path()) / "host7.key";
  EXPECT_EQ(folder.add(host7, kSecond, elsewhere).value(), elsewhere);
  const auto again = folder.add(host7, kThird);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(again.error().message(), HasSubstr("wsync keys remove sidecar host7"));
  EXPECT_FALSE(fs::exists(path() / "issued" / "sidecar.host7.key"));
  // A file that exists is not replaced, and its holder is not listed.
  EXPECT_EQ(folder.add({.role = KeyRole::kReader, .name = "eve"}, kThird, elsewhere).error().code(),
            ErrorCode::kBusy);
  EXPECT_EQ(load_key_file(elsewhere)->pair.public_key, kSecond.public_key);
  EXPECT_EQ(folder.add({.role = KeyRole::kCoordinator, .name = "x"}, kThird).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(folder.add({.role = KeyRole::kReader, .name = "../x"}, kThird).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(folder.authorized()->size(), 1U);
  // If the public half cannot be listed, no key file remains.
  fs::remove(path() / "authorized" / "reader");
  EXPECT_FALSE(folder.add({.role = KeyRole::kReader, .name = "eve"}, kThird).has_value());
  EXPECT_FALSE(fs::exists(path() / "issued" / "reader.eve.key"));
}

TEST_F(Keys, ARemovedKeyIsListedNoMore) {
  KeyFolder folder = make();
  const KeyOwner host7{.role = KeyRole::kSidecar, .name = "host7"};
  const fs::path file = folder.add(host7, kSecond).value();
  EXPECT_TRUE(folder.add({.role = KeyRole::kSidecar, .name = "host8"}, kThird).has_value());
  EXPECT_EQ(folder.remove(host7).value(), true);
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(folder.authorized()->find(kSecond.public_key), nullptr);
  EXPECT_NE(folder.authorized()->find(kThird.public_key), nullptr);
  const auto again = folder.remove(host7);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(again.error().message(), HasSubstr("keys of this role: host8"));
  EXPECT_THAT(folder.remove({.role = KeyRole::kReader, .name = "eve"}).error().message(),
              HasSubstr("no reader has a key"));
  EXPECT_EQ(folder.remove({.role = KeyRole::kReader, .name = "../x"}).error().code(),
            ErrorCode::kInvalidInput);
  // The name is free again, and a key file that was carried away is nobody's concern.
  const fs::path again_file = folder.add(host7, kSecond).value();
  fs::remove(again_file);
  EXPECT_EQ(folder.remove(host7).value(), false);
}

TEST_F(Keys, ASecretThatOthersMayReachIsRefused) {
  KeyFolder folder = make();
  const fs::path file = folder.add({.role = KeyRole::kSidecar, .name = "host7"}, kSecond).value();
  for (const mode_t mode : {0640U, 0604U, 0620U, 0602U, 0601U}) {
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    const auto read = load_key_file(file);
    ASSERT_FALSE(read.has_value()) << mode;
    EXPECT_EQ(read.error().code(), ErrorCode::kRefused);
    EXPECT_THAT(read.error().message(), HasSubstr("chmod 600"));
  }
  ASSERT_EQ(::chmod(file.c_str(), 0400), 0);
  EXPECT_TRUE(load_key_file(file).has_value());
  EXPECT_EQ(load_key_file(path() / "issued").error().code(), ErrorCode::kRefused);
  EXPECT_EQ(load_key_file(path() / "none").error().code(), ErrorCode::kNotFound);
  ASSERT_EQ(::mkfifo((path() / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(load_key_file(path() / "pipe").error().code(), ErrorCode::kRefused);
  write_text(path() / "long", std::string(kKeyFileBytesMax + 1, 'x'));
  ASSERT_EQ(::chmod((path() / "long").c_str(), 0600), 0);
  EXPECT_EQ(load_key_file(path() / "long").error().code(), ErrorCode::kInvalidInput);
}

TEST_F(Keys, AFolderInWhichOthersMayWriteIsRefused) {
  const KeyFolder folder = make();
  for (const fs::path& open : {path(), path() / "authorized", path() / "authorized" / "reader"}) {
    ASSERT_EQ(::chmod(open.c_str(), 0770), 0);
    const auto opened = KeyFolder::open(path());
    const auto keys = opened ? opened->authorized() : fail(opened.error());
    ASSERT_FALSE(keys.has_value()) << open;
    EXPECT_EQ(keys.error().code(), ErrorCode::kRefused);
    EXPECT_THAT(keys.error().message(), HasSubstr(open.string() + " has mode 0770"));
    ASSERT_EQ(::chmod(open.c_str(), 0755), 0);
    EXPECT_TRUE(folder.authorized().has_value());
  }
}

TEST_F(Keys, AFileThatListsNoKeyIsRefusedByItsName) {
  const KeyFolder folder = make();
  const fs::path readers = path() / "authorized" / "reader";
  const auto refused = [&](const std::string& where) {
    const auto keys = folder.authorized();
    ASSERT_FALSE(keys.has_value()) << where;
    EXPECT_EQ(keys.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(keys.error().message(), HasSubstr(where));
  };
  for (const std::string& text : {std::string(), key_of('a') + "\n\n", key_of('a') + "a",
                                  key_of('~'), std::string(39, 'a'), std::string(100, 'a')}) {
    write_text(readers / "eve", text);
    refused((readers / "eve").string());
  }
  fs::remove(readers / "eve");
  write_text(readers / "a name", key_of('a'));
  refused((readers / "a name").string());
  fs::remove(readers / "a name");
  fs::create_directory(readers / "folder");
  refused("expected a file with a public key");
  fs::remove(readers / "folder");
  fs::create_directory(path() / "authorized" / "captain");
  refused("found 'captain'");
  fs::remove(path() / "authorized" / "captain");
  write_text(readers / "one", key_of('a'));
  write_text(readers / "two", key_of('a'));
  refused("listed for reader");
  fs::remove(readers / "two");
  // Files that are being written are no keys yet.
  for (const std::string name : {"two.new", "two.old", "two.lock"}) write_text(readers / name, "x");
  const auto keys = folder.authorized();
  ASSERT_TRUE(keys.has_value()) << keys.error().message();
  EXPECT_EQ(keys->size(), 1U);
  fs::remove_all(path() / "authorized");
  EXPECT_EQ(folder.authorized().error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace wsync::control
