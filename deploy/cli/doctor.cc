// `wsync doctor`: checks whether this host is ready for a configuration.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <vector>

#include "deploy/cli/commands.h"
#include "deploy/cli/doctor_checks.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/sources.h"
#include "shared/config/trainer_config.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::milliseconds kReachDeadline{1'000};

struct DoctorOptions {
  std::string file;
  std::string role = "sidecar";
  std::vector<std::string> set;
};

// Values of a sidecar's or trainer's configuration that are checked on this host.
struct HostConfig {
  std::string run_dir;
  std::string state_dir;
  std::string coordinator;
  config::HttpConfig http;
  std::uint64_t host_memory = 0;
  HugePages huge_pages = HugePages::kOff;
  CudaWanted cuda;
  std::string trace_file;  // empty: none
  // Of the role: keys, data, patches and scrubs.
  std::vector<Check> own;
};

Result<HostConfig> read_config(const DoctorOptions& options) {
  const config::Sources sources{
      .file = options.file, .environment = config::process_environment(), .set = options.set};
  if (options.role == "trainer") {
    const auto c = WSYNC_TRY(config::load_trainer(sources));
    return HostConfig{c.run_dir,
                      c.state_dir,
                      c.coordinator,
                      c.http,
                      0,
                      c.memory.huge_pages,
                      {},
                      c.trace_file,
                      {check_decisions(c), check_key_folder(c.keys), check_data_security(c.network),
                       check_trainer_patches(c)}};
  }
  const auto c = WSYNC_TRY(config::load_sidecar(sources));
  return HostConfig{c.run_dir,
                    c.state_dir,
                    c.coordinator,
                    c.http,
                    c.host_memory,
                    c.memory.huge_pages,
                    {.wanted = c.devices.kind == DeviceKind::kCuda,
                     .gpus = c.devices.gpus,
                     .named = c.devices.gpus_named,
                     .collective = c.devices.collective},
                    c.trace_file,
                    {check_sidecar_key(c.key, c.name), check_data_security(c.network),
                     check_patches(c), check_scrub(c)}};
}

Result<Outcome> doctor(const DoctorOptions& options) {
  auto wanted = WSYNC_TRY(read_config(options));
  std::vector<Check> checks = {check_kernel(),
                               check_memory(wanted.host_memory),
                               check_sealed_memory(),
                               check_huge_pages(wanted.huge_pages),
                               check_file_locks(),
                               check_cpu(),
                               check_descriptors(),
                               check_run_dir(wanted.run_dir),
                               check_state_dir(wanted.state_dir)};
  std::ranges::move(wanted.own, std::back_inserter(checks));
  checks.push_back(check_pages(wanted.http, options.role == "trainer" ? "coordinator" : "sidecar",
                               kReachDeadline));
  if (!wanted.trace_file.empty()) checks.push_back(check_trace_setting(wanted.trace_file));
  for (Check& check : check_cuda(wanted.cuda)) checks.push_back(std::move(check));
  if (!wanted.coordinator.empty())
    checks.push_back(check_coordinator(wanted.coordinator, kReachDeadline));

  Outcome outcome;
  std::size_t failed = 0;
  std::size_t warned = 0;
  for (const Check& check : checks) {
    failed += check.status == CheckStatus::kFail ? 1 : 0;
    warned += check.status == CheckStatus::kWarn ? 1 : 0;
    outcome.text +=
        fmt::format("{:<5} {:<14} {}\n", check_status_name(check.status), check.name, check.found);
    if (!check.advice.empty()) outcome.text += fmt::format("{:<20} -> {}\n", "", check.advice);
  }
  outcome.text += fmt::format("{} checks, {} failed, {} warnings\n", checks.size(), failed, warned);
  outcome.result = {{"checks", to_json(checks)}, {"failed", failed}, {"warnings", warned}};
  outcome.exit_code = failed == 0 ? kExitOk : kExitFailed;
  return outcome;
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "doctor",
       .description =
           "Check whether this host is ready for a configuration, before any process is started",
       .examples = {"wsync doctor", "wsync doctor -c sidecar.yaml --json",
                    "wsync doctor --role trainer -c trainer.yaml"}});
  auto options = std::make_shared<DoctorOptions>();
  command->add_option("-c,--config", options->file, "Configuration file (default: built-in values)")
      ->type_name("FILE");
  command
      ->add_option("--role", options->role,
                   "Role that the configuration is for: sidecar (default) or trainer")
      ->check(CLI::IsMember({"sidecar", "trainer"}));
  command
      ->add_option("--set", options->set,
                   "Override a key of the configuration, such as run_dir=/run/w")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->take_all();
  command->callback(
      [&context, options] { context.run("doctor", [&] { return doctor(*options); }); });
}

}  // namespace wsync::cli
