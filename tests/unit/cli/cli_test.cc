#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "deploy/cli/commands.h"
#include "deploy/cli/completion.h"
#include "deploy/cli/doctor_checks.h"
#include "shared/base/unique_fd.h"
#include "shared/command/program.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;

TEST(Cli, HelpAndVersion) {
  const auto help = run_command(service_program(), {"--help"});
  EXPECT_EQ(help.exit_code, kExitOk);
  EXPECT_NE(help.out.find("doctor"), std::string::npos);
  EXPECT_NE(run_command(service_program(), {"doctor", "--help"}).out.find("Usage: wsync doctor"),
            std::string::npos);
  EXPECT_EQ(run_command(service_program(), {"--version"}).out.substr(0, 6), "wsync ");
}

TEST(Cli, EveryCommandHasExamples) {
  CLI::App app;
  Context context;
  build_app(service_program(), app, context);
  ASSERT_FALSE(app.get_subcommands({}).empty());
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_subcommands({}).empty()) continue;
    const auto others = service_program().others;  // theirs is the text of another program
    if (std::any_of(others.begin(), others.end(), [&](const OtherProgram& other) {
          return other.command == command->get_name();
        }))
      continue;
    EXPECT_NE(command->get_footer().find("wsync " + command->get_name()), std::string::npos)
        << command->get_name();
  }
}

TEST(Cli, BadArgumentsAreBadInputWithTheNearestName) {
  auto run = run_command(service_program(), {"doctr"});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_EQ(run.err, "wsync: no command 'doctr'; did you mean doctor? (wsync --help)\n");
  run = run_command(service_program(), {"doctor", "--rloe=trainer"});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_NE(run.err.find("did you mean --role?"), std::string::npos) << run.err;
  EXPECT_EQ(run_command(service_program(), {}).exit_code, kExitBadInput);
  // Keys are not options, also if another command has an option of that name.
  for (const auto& [arguments, hint] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"sidecar", "--name", "host0"}, "; name is a configuration key: --set name=host0 ("},
           {{"sidecar", "--name=host0"}, "; name is a configuration key: --set name=host0 ("},
           {{"sidecar", "--devices.count", "--trace"},
            "; devices.count is a configuration key: --set devices.count=VALUE ("},
           {{"trainer", "--min-replicas", "2"},
            "; min_replicas is a configuration key: --set min_replicas=2 ("}}) {
    run = run_command(service_program(), arguments);
    EXPECT_EQ(run.exit_code, kExitBadInput);
    EXPECT_NE(run.err.find(hint), std::string::npos) << run.err;
  }
  run = run_command(service_program(), {"sidecar", "--min-replicas", "2"});
  EXPECT_EQ(run.err.find("configuration key"), std::string::npos) << run.err;
  run = run_command(service_program(), {"push", "/models", "--set", "arenas=2"});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_NE(run.err.find(
                "--set is an option of trainer, sidecar, coordinator, doctor; this command reads "
                "configuration keys from the environment: WSYNC_KEY"),
            std::string::npos)
      << run.err;
  run = run_command(service_program(), {"doctor", "--json", "--what"});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  const auto object = nlohmann::json::parse(run.out);
  EXPECT_EQ(object.at("command"), "doctor");
  EXPECT_EQ(object.at("ok"), false);
  EXPECT_EQ(object.at("error").at("code"), "invalid_input");
}

TEST(Cli, ErrorsOfACommandAreOneSentenceAndACode) {
  const auto run = run_command(service_program(), {"doctor", "--set", "stages=9"});
  EXPECT_EQ(run.exit_code, kExitBadInput);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err, "wsync doctor: --set: stages: expected one of auto, 2, 3, found '9'\n");
  EXPECT_EQ(run_command(service_program(), {"doctor", "--log-level", "loud"}).exit_code,
            kExitBadInput);
}

TEST(Cli, ExitCodesByError) {
  EXPECT_EQ(exit_code_of(ErrorCode::kInvalidInput), kExitBadInput);
  EXPECT_EQ(exit_code_of(ErrorCode::kNotFound), kExitBadInput);
  EXPECT_EQ(exit_code_of(ErrorCode::kDigestMismatch), kExitFailed);
  EXPECT_EQ(exit_code_of(ErrorCode::kDeadline), kExitUnreachable);
  EXPECT_EQ(exit_code_of(ErrorCode::kPeerLost), kExitUnreachable);
  EXPECT_EQ(exit_code_of(ErrorCode::kCancelled), kExitInterrupted);
}

TEST(Cli, HumanBytes) {
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(256U << 20U), "256.0 MiB");
  EXPECT_EQ(human_bytes(1536U << 20U), "1.5 GiB");
}

TEST(Doctor, FindsWhatIsWrongWithADirectory) {
  const TemporaryDirectory directory;
  EXPECT_EQ(check_run_dir(directory.path() + "/later/still").status, CheckStatus::kOk);
  const std::string run_dir = directory.path() + "/run";
  ASSERT_EQ(mkdir(run_dir.c_str(), 0700), 0);
  EXPECT_EQ(check_run_dir(run_dir).status, CheckStatus::kOk);
  ASSERT_EQ(chmod(run_dir.c_str(), 0755), 0);
  const Check open = check_run_dir(run_dir);
  EXPECT_EQ(open.status, CheckStatus::kFail);
  EXPECT_EQ(open.advice, "chmod 0700 " + run_dir);
  EXPECT_EQ(check_state_dir(run_dir).status, CheckStatus::kFail) << "its owner alone, as a sidecar";
  ASSERT_EQ(chmod(run_dir.c_str(), 0700), 0);
  EXPECT_EQ(check_state_dir(run_dir).status, CheckStatus::kOk);
  ASSERT_EQ(chmod(run_dir.c_str(), 0777), 0);
  EXPECT_EQ(check_state_dir(run_dir).status, CheckStatus::kFail);
  EXPECT_EQ(check_run_dir("/dev/null").status, CheckStatus::kFail);
  EXPECT_EQ(check_state_dir("/dev/null/under").status, CheckStatus::kFail);
}

TEST(Doctor, ReachesACoordinatorOrSaysWhyNot) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/control";
  const std::chrono::milliseconds deadline(1000);
  EXPECT_EQ(check_coordinator("ipc://" + path, deadline).status, CheckStatus::kWarn);
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(check_coordinator("ipc://" + path, deadline).status, CheckStatus::kOk);
  EXPECT_EQ(check_coordinator("tcp://127.0.0.1:1", deadline).status, CheckStatus::kWarn);
  // A stranger at the address of the pages, who takes connections and says nothing.
  const Check taken =
      check_pages({.address = "ipc://" + path}, "sidecar", std::chrono::milliseconds(20));
  EXPECT_EQ(taken.status, CheckStatus::kFail);
  EXPECT_NE(taken.found.find("did not answer a request for /metrics within 20 ms"),
            std::string::npos);
  EXPECT_EQ(check_pages({.address = "ipc://" + path + "2"}, "sidecar", deadline).found,
            "ipc://" + path + "2 is free");
  EXPECT_EQ(check_pages({.address = "tcp://127.0.0.1:1"}, "sidecar", deadline).found,
            "tcp://127.0.0.1:1 is free");
  for (const char* none : {"", "tcp://127.0.0.1:0"})
    EXPECT_EQ(check_pages({.address = none}, "sidecar", deadline).status, CheckStatus::kOk) << none;
}

TEST(Doctor, MemoryThatIsNotThereIsAFailure) {
  EXPECT_EQ(check_memory(0).found.find("available") == std::string::npos, false);
  const Check check = check_memory(1ULL << 60U);
  EXPECT_EQ(check.status, CheckStatus::kFail);
  EXPECT_NE(check.found.find("host_memory is"), std::string::npos);
}

TEST(Doctor, ExitsWithOneOnAFailure) {
  const TemporaryDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  const auto bad =
      run_command(service_program(), {"doctor", "--json", "--set", "run_dir=" + directory.path()});
  EXPECT_EQ(bad.exit_code, kExitFailed);
  const auto object = nlohmann::json::parse(bad.out);
  EXPECT_EQ(object.at("ok"), false);
  EXPECT_EQ(object.at("result").at("failed"), 1);
  ASSERT_EQ(chmod(directory.path().c_str(), 0700), 0);
  const auto good =
      run_command(service_program(), {"doctor", "--json", "--set", "run_dir=" + directory.path()});
  EXPECT_EQ(nlohmann::json::parse(good.out).at("result").at("failed"), 0) << good.out;
}

// The script in a real bash, asked for what may follow `wsync doctor --ro`.
TEST(Completion, BashCompletesCommandsAndOptions) {
  const auto complete = [](const std::string& words, int index) {
    const TemporaryDirectory directory;
    const std::string script = run_command(service_program(), {"completion", "bash"}).out;
    const std::string path = directory.path() + "/completion";
    std::FILE* file = std::fopen(path.c_str(), "w");
    EXPECT_NE(file, nullptr);
    std::fputs(script.c_str(), file);
    std::fclose(file);
    const std::string command = "bash -c 'source " + path + "; COMP_WORDS=(" + words +
                                "); COMP_CWORD=" + std::to_string(index) +
                                "; _wsync; echo ${COMPREPLY[*]}'";
    std::FILE* pipe = popen(command.c_str(), "r");
    EXPECT_NE(pipe, nullptr);
    char text[512] = {};
    EXPECT_NE(std::fgets(text, sizeof text, pipe), nullptr);
    EXPECT_EQ(pclose(pipe), 0);
    return std::string(text);
  };
  EXPECT_EQ(complete("wsync doct", 1), "doctor\n");
  EXPECT_EQ(complete("wsync doctor --ro", 2), "--role\n");
  EXPECT_EQ(complete("wsync completion --ro", 2), "\n");
}

TEST(Completion, NamesEveryShownCommandInEachShell) {
  CLI::App app;
  Context context;
  build_app(service_program(), app, context);
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(app, shell).value();
    for (const CLI::App* command : app.get_subcommands({})) {
      if (command->get_group().empty()) continue;
      EXPECT_NE(script.find(command->get_name()), std::string::npos)
          << shell << " " << command->get_name();
    }
  }
  const std::vector<CompletionPlace> places = completion_places(app);
  for (const CLI::App* command : app.get_subcommands({}))
    EXPECT_EQ(
        std::ranges::none_of(places.at(0).words,
                             [&](const auto& word) { return word.name == command->get_name(); }),
        command->get_group().empty())
        << command->get_name();
  EXPECT_EQ(completion_script(app, "tcsh").error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::cli
