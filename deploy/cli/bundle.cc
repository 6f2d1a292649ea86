// `wsync bundle`: writes one archive with the data that is needed to diagnose a failure on this
// host.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unistd.h>

#include "deploy/cli/bundle_config.h"
#include "deploy/cli/bundle_files.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/doctor_checks.h"
#include "deploy/cli/remote.h"
#include "deploy/cli/report.h"
#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/units.h"
#include "shared/command/command_key.h"
#include "shared/command/outcome.h"
#include "shared/config/directories.h"
#include "shared/config/limits.h"
#include "shared/config/sources.h"
#include "shared/control/zmq/request.h"

namespace wsync::cli {
namespace {

using TooLong = BundleFiles::TooLong;

constexpr int kBundleSchema = 1;
constexpr std::uint64_t kLogMax = 16 * limits::kMiB;
constexpr std::uint64_t kTraceMax = 128 * limits::kMiB;
constexpr std::uint64_t kRecordMax = limits::kMiB;
constexpr std::chrono::milliseconds kConnectDeadline{1'000};
constexpr std::chrono::milliseconds kReplyDeadline{3'000};

struct BundleOptions {
  std::string output;
  std::string coordinator;
  std::string key;  // file; empty: the coordinator has no keys
  std::string run_dir;
  std::string state_dir;
  std::vector<std::string> configs;
  std::vector<std::string> logs;
  std::vector<std::string> traces;
};

std::string utc_text(const char* form) {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[64];
  return std::string(text, std::strftime(text, sizeof text, form, &utc));
}

// Locations of files and sockets. Options take precedence over configs, configs over the
// environment, and the environment over defaults.
struct Places {
  std::string run_dir;
  std::string state_dir;
  std::vector<std::string> coordinators;
  std::set<std::string> traces;
};

class Bundle {
 public:
  Bundle(const BundleOptions& options, BundleFiles& files) : options_(options), files_(files) {}

  Result<> collect() {
    WSYNC_TRY(configs());
    find_places();
    WSYNC_TRY(facts());
    WSYNC_TRY(statuses());
    WSYNC_TRY(files_.add_listing("run_dir.txt", places_.run_dir));
    WSYNC_TRY(state());
    return logs_and_traces();
  }

 private:
  Result<> configs() {
    for (const std::string& path : options_.configs) {
      const Result<Bytes> bytes = read_small_file(path, config::kConfigBytesMax);
      if (!bytes) {
        files_.missing(path, bytes.error().message());
        continue;
      }
      const Result<ShownConfig> shown =
          shown_config({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, path);
      if (!shown) {
        files_.missing(path, shown.error().message());
        continue;
      }
      WSYNC_TRY(files_.add_text(numbered("config", path), shown->text, path));
      for (const auto& [key, value] : shown->values) given_[key].push_back(value);
    }
    return files_.add_text("environment.txt", shown_environment(config::process_environment()),
                           "the environment of wsync bundle");
  }

  std::string numbered(const std::string& folder, const std::string& path) {
    return fmt::format("{}/{}-{}", folder, ++number_,
                       file_name_of(std::filesystem::path(path).filename().string()));
  }

  // Returns the value of a key from the first config that has it, otherwise from the environment.
  [[nodiscard]] std::string value_of(const std::string& key, const char* variable) const {
    if (const auto found = given_.find(key); found != given_.end()) return found->second.front();
    const auto environment = config::process_environment();
    const auto set = environment.find(variable);
    return set == environment.end() || set->second == "auto" ? "" : set->second;
  }

  void find_places() {
    const auto first = [](const std::string& a, const std::string& b, const std::string& c) {
      return !a.empty() ? a : !b.empty() && b != "auto" ? b : c;
    };
    places_.run_dir =
        first(options_.run_dir, value_of("run_dir", "WSYNC_RUN_DIR"), config::default_run_dir());
    places_.state_dir = first(options_.state_dir, value_of("state_dir", "WSYNC_STATE_DIR"),
                              config::default_state_dir());
    if (!options_.coordinator.empty()) {
      places_.coordinators.push_back(options_.coordinator);
    } else {
      std::set<std::string> addresses;
      for (const char* key : {"listen", "coordinator", "publish.listen"})
        if (const auto found = given_.find(key); found != given_.end())
          addresses.insert(found->second.begin(), found->second.end());
      addresses.erase("auto");
      if (addresses.empty()) addresses.insert("ipc://" + places_.run_dir + "/control");
      places_.coordinators.assign(addresses.begin(), addresses.end());
    }
    places_.traces.insert(options_.traces.begin(), options_.traces.end());
    if (const auto found = given_.find("trace_file"); found != given_.end())
      for (const std::string& base : found->second)
        for (const char* end : {"", ".json", ".svg"})
          if (std::error_code error;
              !base.empty() && std::filesystem::is_regular_file(base + end, error))
            places_.traces.insert(base + end);
  }

  Result<> facts() {
    const std::vector<Check> checks = [&] {
      std::vector<Check> list = {check_kernel(),
                                 check_memory(0),
                                 check_sealed_memory(),
                                 check_file_locks(),
                                 check_cpu(),
                                 check_descriptors(),
                                 check_run_dir(places_.run_dir),
                                 check_state_dir(places_.state_dir)};
      for (Check& check : check_cuda({})) list.push_back(std::move(check));
      return list;
    }();
    return files_.add_json("host.json", {{"checks", to_json(checks)}}, "this host");
  }

  Result<> statuses() {
    std::size_t n = 0;
    for (const std::string& address : places_.coordinators)
      WSYNC_TRY(status_of(
          address,
          n++ == 0 ? "status/coordinator.json" : fmt::format("status/coordinator-{}.json", n),
          options_.key));
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator it(places_.run_dir, error), end; !error && it != end;
         it.increment(error))
      if (it->path().extension() == ".control") names.push_back(it->path().stem().string());
    std::sort(names.begin(), names.end());
    for (const std::string& name : names)
      WSYNC_TRY(status_of(fmt::format("ipc://{}/{}.control", places_.run_dir, name),
                          "status/sidecar-" + file_name_of(name) + ".json"));
    return {};
  }

  // `key_file`: of this command; empty: the process at the address has no keys.
  Result<> status_of(const std::string& address, const std::string& name,
                     const std::string& key_file = {}) {
    if (const std::string complaint = check_address(address); !complaint.empty()) {
      files_.missing("the status of " + without_credentials(address),
                     "the address is not a valid control address");
      return {};
    }
    auto key = command_key(key_file);
    if (!key) {
      files_.missing("the status of " + address, key.error().message());
      return {};
    }
    control::RequestOptions request{
        .address = address, .key = std::move(*key), .stop_on_signal = true};
    request.connect_deadline = kConnectDeadline;
    request.deadline = kReplyDeadline;
    const auto decoded = control::request(request, {}, control::Status{});
    if (!decoded && decoded.error().code() == ErrorCode::kCancelled)
      return fail(ErrorCode::kCancelled, "interrupted; nothing was written");
    const auto* reply = decoded ? std::get_if<control::StatusReply>(&decoded->message) : nullptr;
    if (reply == nullptr) {
      files_.missing("the status of " + address,
                     decoded ? "the process at this address sent an unexpected message"
                             : decoded.error().message());
      return {};
    }
    return files_.add_json(name, to_json(*reply), address);
  }

  // Adds only files that wsync writes. Others may use the directory as well.
  Result<> state() {
    WSYNC_TRY(files_.add_listing("state_dir.txt", places_.state_dir));
    std::error_code error;
    std::vector<std::string> paths;
    using Files = std::filesystem::recursive_directory_iterator;  // one folder per fleet
    for (Files it(places_.state_dir, error), end; !error && it != end; it.increment(error)) {
      if (it.depth() > 0) it.disable_recursion_pending();
      if (it->path().extension() == ".record" || it->path().extension() == ".decisions")
        paths.push_back(it->path().string());
    }
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths)
      WSYNC_TRY(files_.add_file(
          "state/" +
              file_name_of(
                  std::filesystem::path(path).lexically_relative(places_.state_dir).string()),
          path, kRecordMax, TooLong::kLeaveOut));
    return {};
  }

  Result<> logs_and_traces() {
    for (const std::string& path : options_.logs)
      WSYNC_TRY(files_.add_file(numbered("log", path), path, kLogMax, TooLong::kEndOnly));
    for (const std::string& path : places_.traces)
      WSYNC_TRY(files_.add_file(numbered("trace", path), path, kTraceMax, TooLong::kLeaveOut));
    return {};
  }

  const BundleOptions& options_;
  BundleFiles& files_;
  std::map<std::string, std::vector<std::string>> given_;  // values of the configs by key
  Places places_;
  unsigned number_ = 0;
};

Result<Outcome> bundle(const BundleOptions& options) {
  const std::string folder = "wsync-bundle-" + utc_text("%Y%m%d-%H%M%S");
  const std::string path = options.output.empty() ? folder + ".tar.gz" : options.output;
  auto archive = WSYNC_TRY(ArchiveFile::create(path));
  BundleFiles files(*archive, folder);
  WSYNC_TRY(Bundle(options, files).collect());
  WSYNC_TRY(files.finish({{"schema", kBundleSchema},
                          {"made", utc_text("%Y-%m-%dT%H:%M:%SZ")},
                          {"wsync", WSYNC_VERSION},
                          {"protocol", control::kProtocolVersion},
                          {"host", host_name()}}));
  const auto bytes = WSYNC_TRY(archive->finish());
  Outcome outcome{.result = {{"file", path},
                             {"bytes", bytes},
                             {"files", files.files()},
                             {"missing", files.missing()}},
                  .text = {}};
  outcome.text = fmt::format("{}: {} files, {}\n", path, files.files().size(), human_bytes(bytes));
  for (const nlohmann::json& one : files.missing())
    outcome.text += fmt::format("  without {}: {}\n", one.at("what").get<std::string>(),
                                one.at("why").get<std::string>());
  return outcome;
}

}  // namespace

void add_bundle(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "bundle",
       .description = "Collect the data that explains a failure in one archive, without secrets",
       .examples = {"wsync bundle", "wsync bundle -o /tmp/case.tar.gz -c /etc/wsync/sidecar.yaml",
                    "wsync bundle -c trainer.yaml --log trainer.log --trace update.json"}});
  auto options = std::make_shared<BundleOptions>();
  const auto repeatable = [&](const std::string& name, std::vector<std::string>& values,
                              const std::string& text) {
    command->add_option(name, values, text)->type_name("FILE")->allow_extra_args(false)->take_all();
  };
  command
      ->add_option("-o,--output", options->output,
                   "Archive to create, a .tar.gz that does not exist yet (default: "
                   "wsync-bundle-TIME.tar.gz in this directory)")
      ->type_name("FILE");
  repeatable("-c,--config", options->configs,
             "Configuration file of a sidecar or a trainer on this host (repeatable)");
  repeatable("--log", options->logs, "Log to add, its last 16 MiB (repeatable)");
  repeatable("--trace", options->traces,
             "Trace to add, besides those that the configurations name (repeatable)");
  add_key_option(*command, options->key);
  command
      ->add_option("--run-dir", options->run_dir,
                   "Directory of the sockets (default: that of the configuration)")
      ->type_name("DIR");
  command
      ->add_option("--state-dir", options->state_dir,
                   "Directory of the records (default: that of the configuration)")
      ->type_name("DIR");
  command
      ->add_option("--coordinator", options->coordinator,
                   "Control address of the coordinator (default: that of the configuration)")
      ->check(check_address);
  command->callback(
      [&context, options] { context.run("bundle", [&] { return bundle(*options); }); });
}

}  // namespace wsync::cli
