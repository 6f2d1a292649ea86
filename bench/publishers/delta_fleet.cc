#include "bench/publishers/delta_fleet.h"

#include <filesystem>

#include "bench/publishers/c_publisher.h"

namespace wsync::bench {
Result<std::unique_ptr<PublishingFleet>> start_delta_fleet(const DeltaFleetOptions& options,
                                                           const ModelSource& source,
                                                           cli::ChildProcesses& children) {
  const std::string directory = options.directory + "/fleet";
  std::filesystem::remove_all(directory);  // of a fleet before
  std::filesystem::create_directory(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  auto fleet = WSYNC_TRY(PublishingFleet::start(
      {.fleet = {.executable = options.executable,
                 .directory = directory,
                 .name = "delta",
                 .checkpoint = options.checkpoint,
                 .engines = options.engines,
                 .gpus = {},
                 .sidecar_settings = {"patch.mode=changes", "patch.transfer=auto",
                                      "transport=" + options.transport},
                 .has_trainer = false},
       .executable = options.executable,
       .command = {"bench", "publisher", "--job"},
       .kinds = {kPublishChanged}},
      source, children));
  for (unsigned i = 0; i < options.full_updates; ++i) {
    (void)WSYNC_TRY(fleet->change("elements", 1, i));
    (void)WSYNC_TRY(fleet->publish(kPublishChanged, i));
  }
  return fleet;
}

}  // namespace wsync::bench
