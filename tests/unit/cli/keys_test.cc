// `wsync keys`, from the command line.
#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "deploy/cli/doctor_checks.h"
#include "shared/control/keys/key_folder.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;

test::CommandRun keys(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "keys");
  return run_command(service_program(), arguments);
}

TEST(KeysCommand, AFolderIsMadeFilledListedAndEmptied) {
  const TemporaryDirectory directory;
  const std::string folder = directory.path() + "/keys";
  auto run = keys({"init", folder, "--json"});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  const std::string server = nlohmann::json::parse(run.out)["result"]["server_key"];
  run = keys({"add", "sidecar", "host7", "--keys", folder, "--json"});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  const auto added = nlohmann::json::parse(run.out)["result"];
  const auto file = control::load_key_file(added["file"].get<std::string>());
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(file->server_key, server);
  EXPECT_EQ(file->pair.public_key, added["public_key"].get<std::string>());
  EXPECT_EQ(file->owner, (control::KeyOwner{.role = control::KeyRole::kSidecar, .name = "host7"}));
  run = keys({"add", "operator", "alice", "--keys", folder, "-o", directory.path() + "/alice.key"});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/alice.key"));
  run = keys({"list", "--keys", folder, "--json"});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  const auto list = nlohmann::json::parse(run.out)["result"]["keys"];
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0]["role"], "coordinator");
  EXPECT_EQ(list[0]["public_key"], server);
  EXPECT_EQ(list[1]["name"], "host7");
  EXPECT_EQ(list[2]["name"], "alice");
  run = keys({"remove", "sidecar", "host7", "--keys", folder, "--json"});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["result"]["removed_file"], true);
  EXPECT_EQ(keys({"list", "--keys", folder}).out.find("host7"), std::string::npos);
}

TEST(KeysCommand, NoSecretIsPrinted) {
  const TemporaryDirectory directory;
  const std::string folder = directory.path() + "/keys";
  std::string printed = keys({"init", folder}).out;
  printed += keys({"add", "reader", "eve", "--keys", folder}).out;
  printed += keys({"add", "reader", "bob", "--keys", folder, "--json"}).out;
  printed += keys({"list", "--keys", folder}).out + keys({"list", "--keys", folder, "--json"}).out;
  const auto opened = control::KeyFolder::open(folder);
  ASSERT_TRUE(opened.has_value());
  EXPECT_NE(printed.find(opened->coordinator().pair.public_key), std::string::npos);
  EXPECT_EQ(printed.find(opened->coordinator().pair.secret_key), std::string::npos);
  for (const char* name : {"eve", "bob"}) {
    const auto key =
        control::load_key_file(folder + "/issued/reader." + std::string(name) + ".key");
    ASSERT_TRUE(key.has_value());
    EXPECT_NE(printed.find(key->pair.public_key), std::string::npos);
    EXPECT_EQ(printed.find(key->pair.secret_key), std::string::npos);
  }
}

TEST(KeysCommand, TheDoctorChecksKeys) {
  const TemporaryDirectory directory;
  const std::string folder = directory.path() + "/keys";
  EXPECT_EQ(check_key_folder("").status, CheckStatus::kOk);
  EXPECT_NE(check_key_folder("").found.find("who reaches the control address is admitted"),
            std::string::npos);
  EXPECT_EQ(check_key_folder(folder).status, CheckStatus::kFail);
  ASSERT_EQ(keys({"init", folder}).exit_code, kExitOk);
  ASSERT_EQ(keys({"add", "sidecar", "host7", "--keys", folder}).exit_code, kExitOk);
  const Check good = check_key_folder(folder);
  EXPECT_EQ(good.status, CheckStatus::kOk);
  EXPECT_NE(good.found.find("the control port has keys: 1 key listed"), std::string::npos)
      << good.found;
  const std::string file = folder + "/issued/sidecar.host7.key";
  EXPECT_EQ(check_sidecar_key("", "host7").status, CheckStatus::kOk);
  EXPECT_EQ(check_sidecar_key(file, "host7").status, CheckStatus::kOk);
  EXPECT_EQ(check_sidecar_key(file, "host8").status, CheckStatus::kFail);
  EXPECT_EQ(check_sidecar_key(folder + "/none", "host7").status, CheckStatus::kFail);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  EXPECT_EQ(check_key_folder(folder).status, CheckStatus::kFail);
}

TEST(KeysCommand, EachErrorSaysWhatToDo) {
  const TemporaryDirectory directory;
  const std::string folder = directory.path() + "/keys";
  auto run = keys({"list"});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_NE(run.err.find("wsync keys list: --keys: expected the folder of keys"), std::string::npos)
      << run.err;
  run = keys({"list", "--keys", folder});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  ASSERT_EQ(keys({"init", folder}).exit_code, kExitOk);
  run = keys({"init", folder});
  EXPECT_NE(run.exit_code, kExitOk);
  EXPECT_NE(run.err.find("coordinator.key exists already"), std::string::npos) << run.err;
  run = keys({"add", "captain", "eve", "--keys", folder});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_NE(run.err.find("expected one of coordinator, publisher, sidecar, reader, operator, found "
                         "'captain'"),
            std::string::npos)
      << run.err;
  run = keys({"add", "coordinator", "eve", "--keys", folder});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  run = keys({"remove", "reader", "eve", "--keys", folder});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_NE(run.err.find("reader eve has no key"), std::string::npos) << run.err;
}

TEST(KeysCommand, TheDoctorSaysHowWeightsTravel) {
  EXPECT_NE(check_data_security({}).found.find("on this host only"), std::string::npos);
  const Check safe = check_data_security({.data_address = "tcp://10.0.0.1:7001"});
  EXPECT_EQ(safe.status, CheckStatus::kOk);
  EXPECT_NE(safe.found.find("tcp://10.0.0.1:7001 by TLS 1.3"), std::string::npos) << safe.found;
  const Check plain = check_data_security(
      {.data_address = "tcp://10.0.0.1:7001", .data_security = DataSecurity::kTrustedNetwork});
  EXPECT_EQ(plain.status, CheckStatus::kWarn);
  EXPECT_NE(plain.found.find("without encryption"), std::string::npos) << plain.found;
}

}  // namespace
}  // namespace wsync::cli
