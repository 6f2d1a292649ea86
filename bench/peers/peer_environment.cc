#include "bench/peers/peer_environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "bench/peers/scripts.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"

namespace wsync::bench {
namespace {

constexpr std::chrono::minutes kInstallDeadline{30};
constexpr std::chrono::seconds kProbeDeadline{60};
constexpr std::chrono::minutes kInstallStop{2};
constexpr std::string_view kUcxSource = "ucx_tags.cc";

// Returns the path of the program compiled from this version of the source, whether or not it
// exists. A program from another version has another path.
std::string ucx_program(const PeerEnvironment& environment) {
  const auto scripts = peer_scripts();
  const auto source = std::ranges::find(scripts, kUcxSource, &PeerScript::name);
  const auto bytes = std::as_bytes(std::span(source->text));
  return fmt::format("{}/bin/ucx_tags-{:016x}", environment.folder, digest_of(bytes).low);
}

std::string python_of(const PeerEnvironment& environment) {
  const std::string own = environment.folder + "/bin/python";
  if (::access(own.c_str(), X_OK) == 0) return own;
  return cli::find_program("python3").value_or(std::string());
}

// Runs the command to its end and returns its output. kRefused, with its last output, if it fails.
Result<std::string> run_command(const std::string& name, std::vector<std::string> command,
                                const PeerEnvironment& environment, std::chrono::nanoseconds time,
                                const Interrupt& interrupt) {
  const std::string text = fmt::format("{}", fmt::join(command, " "));
  const std::string log = fmt::format("{}/{}.log", environment.scripts, name);
  auto child = WSYNC_TRY(Child::start(
      {.command = std::move(command),
       .environment = {{"DEBIAN_FRONTEND", "noninteractive"}, {"PYTHONDONTWRITEBYTECODE", "1"}},
       .log_file = log}));
  auto end = child.wait(interrupt, now() + time);
  if (!end) {
    child.stop(kInstallStop);  // long enough to finish a package
    return fail(std::move(end).error());
  }
  if (end->exit_code == 0) return std::move(end->output);
  const auto log_text = [&log] {
    std::string last;
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);)
      if (!line.empty()) last = line;
    return last;
  }();
  return fail(ErrorCode::kRefused,
              fmt::format("`{}` failed with exit code {}: {}", text, end->exit_code,
                          log_text.empty() ? "no output" : log_text));
}

// Returns the versions of the available modules.
Result<nlohmann::json> probe(const std::vector<const Peer*>& peers,
                             const PeerEnvironment& environment, const std::string& python,
                             const Interrupt& interrupt) {
  std::vector<std::string> command{python, environment.scripts + "/probe.py"};
  for (const Peer* peer : peers)
    for (const std::string_view module : peer->modules)
      if (std::ranges::find(command, module) == command.end()) command.emplace_back(module);
  const auto output =
      WSYNC_TRY(run_command("probe", std::move(command), environment, kProbeDeadline, interrupt));
  nlohmann::json found = nlohmann::json::parse(output, nullptr, false);
  if (!found.is_object())
    return fail(ErrorCode::kInternal,
                "the probe of Python packages did not print a JSON object: " + output);
  return found;
}

std::vector<std::string> command_of(const Peer& peer, const PeerEnvironment& environment,
                                    const std::string& python, unsigned engines) {
  const std::string script = fmt::format("{}/{}", environment.scripts, peer.script);
  switch (peer.start) {
    case PeerStart::kProcesses:
      return {python, script};
    case PeerStart::kProgram:
      return {ucx_program(environment)};
    case PeerStart::kMpirun:
      break;
  }
  std::vector<std::string> command{*cli::find_program(peer.program),
                                   "-n",
                                   std::to_string(engines + 1),
                                   "--oversubscribe",
                                   "--bind-to",
                                   "none"};
  if (::geteuid() == 0) command.emplace_back("--allow-run-as-root");
  command.insert(command.end(), {python, script});
  return command;
}

std::string missing_of(const Peer& peer, const PeerEnvironment& environment,
                       const nlohmann::json& versions, FoundPeer& found) {
  std::vector<std::string> have;
  std::vector<std::string_view> lacking;
  for (const std::string_view module : peer.modules) {
    const auto version = versions.find(std::string(module));
    if (version != versions.end() && version->is_string())
      have.push_back(fmt::format("{} {}", module, version->get<std::string>()));
    else
      lacking.push_back(module);
  }
  found.versions = fmt::format("{}", fmt::join(have, ", "));
  if (!lacking.empty())
    return fmt::format("the Python package {} is missing in {}; install it with --install",
                       fmt::join(lacking, ", "), environment.folder);
  if (!peer.program.empty() && !cli::find_program(peer.program))
    return fmt::format(
        "{} is not in PATH; install it with --install, or install the Debian package {}",
        peer.program, peer.package);
  if (peer.start == PeerStart::kProgram && ::access(ucx_program(environment).c_str(), X_OK) != 0)
    return fmt::format(
        "{} does not exist for the source of this program; compile it with --install",
        ucx_program(environment));
  return {};
}

struct DebianNeed {
  std::string_view package;
  std::string_view program;  // either the program or the file is checked
  std::string_view file;
};
constexpr std::array kDebianNeeds{
    DebianNeed{.package = "openmpi-bin", .program = "mpirun", .file = {}},
    DebianNeed{.package = "redis-server", .program = "redis-server", .file = {}},
    DebianNeed{.package = "g++", .program = "g++", .file = {}},
    DebianNeed{.package = "libucx-dev", .program = {}, .file = "/usr/include/ucp/api/ucp.h"},
    DebianNeed{.package = "libxxhash-dev", .program = {}, .file = "/usr/include/xxhash.h"},
};

std::vector<std::string> missing_debian_packages() {
  std::vector<std::string> missing;
  for (const DebianNeed& need : kDebianNeeds)
    if (need.program.empty() ? ::access(std::string(need.file).c_str(), R_OK) != 0
                             : !cli::find_program(need.program))
      missing.emplace_back(need.package);
  return missing;
}

Result<> install_debian(const PeerEnvironment& environment, const Interrupt& interrupt,
                        std::vector<std::string>& notes) {
  const std::vector<std::string> missing = missing_debian_packages();
  if (missing.empty()) return {};
  const std::string by_hand =
      fmt::format("apt-get install --no-install-recommends {}", fmt::join(missing, " "));
  const auto apt = cli::find_program("apt-get");
  if (!apt || ::geteuid() != 0) {
    notes.push_back(fmt::format("missing Debian packages: {}; {}", fmt::join(missing, ", "),
                                apt ? "run as root: " + by_hand : "install them by hand"));
    return {};
  }
  std::vector<std::string> command{*apt, "install", "-qq", "-y", "--no-install-recommends"};
  command.insert(command.end(), missing.begin(), missing.end());
  auto done = run_command("apt-get", command, environment, kInstallDeadline, interrupt);
  if (!done && done.error().code() != ErrorCode::kCancelled) {
    // The lists of packages may be missing or old.
    (void)run_command("apt-update", {*apt, "update", "-qq"}, environment, kInstallDeadline,
                      interrupt);
    done = run_command("apt-get", command, environment, kInstallDeadline, interrupt);
  }
  if (done) return {};
  if (done.error().code() == ErrorCode::kCancelled) return fail(std::move(done).error());
  notes.push_back(fmt::format("{} (to install by hand: {})", done.error().message(), by_hand));
  return {};
}

Result<> compile_ucx(const PeerEnvironment& environment, const Interrupt& interrupt,
                     std::vector<std::string>& notes) {
  const auto compiler = cli::find_program("g++");
  if (!compiler) {
    notes.emplace_back("ucx is not compiled, because g++ is not in PATH");
    return {};
  }
  const std::string made = ucx_program(environment);
  auto done = run_command(
      "compiler",
      {*compiler, "-std=c++17", "-O2", fmt::format("{}/{}", environment.scripts, kUcxSource), "-o",
       made + ".new", "-lucp", "-lucs", "-lpthread"},
      environment, kInstallDeadline, interrupt);
  std::error_code error;
  if (done) std::filesystem::rename(made + ".new", made, error);
  if (done && !error) return {};
  if (!done && done.error().code() == ErrorCode::kCancelled) return fail(std::move(done).error());
  notes.push_back("ucx is not compiled: " + (done ? error.message() : done.error().message()));
  return {};
}

}  // namespace

Result<std::string> default_peer_folder() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value == '/' ? std::string(value) : std::string();
  };
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/wsync/peers";
  if (const std::string home = set("HOME"); !home.empty()) return home + "/.cache/wsync/peers";
  return fail(ErrorCode::kNotFound,
              "neither XDG_CACHE_HOME nor HOME is set; give the directory of the Python packages "
              "with --environment");
}

Result<std::vector<FoundPeer>> find_peers(const std::vector<const Peer*>& peers,
                                          const PeerEnvironment& environment, unsigned engines,
                                          const Interrupt& interrupt) {
  const std::string python = python_of(environment);
  nlohmann::json versions = nlohmann::json::object();
  std::string broken = "python3 is not in PATH";
  if (!python.empty()) {
    auto probed = probe(peers, environment, python, interrupt);
    if (!probed && probed.error().code() == ErrorCode::kCancelled) return fail(probed.error());
    broken = probed ? std::string() : probed.error().message();
    if (probed) versions = std::move(*probed);
  }
  std::vector<FoundPeer> found;
  for (const Peer* peer : peers) {
    FoundPeer& one = found.emplace_back(FoundPeer{.peer = peer});
    one.missing = missing_of(*peer, environment, versions, one);
    if (peer->start != PeerStart::kProgram && !broken.empty()) one.missing = broken;
    if (one.missing.empty()) one.command = command_of(*peer, environment, python, engines);
  }
  return found;
}

Result<std::vector<std::string>> install_peers(
    const PeerEnvironment& environment, const Interrupt& interrupt,
    const std::function<void(std::string_view)>& on_step) {
  const auto python = cli::find_program("python3");
  if (!python)
    return fail(ErrorCode::kNotFound,
                "python3 is not in PATH; on Debian: apt-get install python3-venv");
  std::error_code error;
  std::filesystem::create_directories(environment.folder, error);
  if (error) return fail_errno(environment.folder, error.value());
  on_step("creating a Python environment");
  auto made = run_command("venv", {*python, "-m", "venv", environment.folder}, environment,
                          kInstallDeadline, interrupt);
  if (!made)
    return fail(made.error().with_context(
        "cannot create a Python environment; on Debian this needs the package python3-venv"));
  on_step("installing Python packages");
  made = run_command(
      "pip",
      {environment.folder + "/bin/python", "-m", "pip", "install", "--quiet",
       "--disable-pip-version-check", "--requirement", environment.scripts + "/requirements.txt"},
      environment, kInstallDeadline, interrupt);
  if (!made) return fail(std::move(made).error());
  std::vector<std::string> notes;
  on_step("installing Debian packages");
  WSYNC_TRY(install_debian(environment, interrupt, notes));
  on_step("compiling");
  WSYNC_TRY(compile_ucx(environment, interrupt, notes));
  return notes;
}

}  // namespace wsync::bench
