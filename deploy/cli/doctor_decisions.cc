// The check of `wsync doctor` that is about where a coordinator keeps its decisions.
#include <filesystem>

#include "deploy/cli/doctor_checks.h"
#include "shared/base/format.h"
#include "trainer_side/coordinator/etcd/etcd_decision_store.h"

namespace wsync::cli {
namespace {

constexpr const char* kDecisionsCheck = "decisions";

std::string described(const std::optional<coordinator::CoordinatorRecord>& record) {
  if (!record) return "no record yet";
  return fmt::format("fence epoch {}, target {}", record->fence.epoch,
                     record->target.none() ? "none" : record->target.to_string());
}

}  // namespace

Check check_decisions(const config::TrainerConfig& config) {
  if (config.etcd.members.empty())
    return {kDecisionsCheck, CheckStatus::kOk,
            fmt::format("decisions are kept on this host, in {}, and are lost with it",
                        (std::filesystem::path(config.state_dir) / config.fleet).string()),
            ""};
  std::vector<std::string> failures;
  std::string record;
  for (const std::string& member : config.etcd.members) {
    auto store = coordinator::etcd::EtcdDecisionStore::create(
        {.members = {member},
         .tls = {.authorities = config.etcd.authorities,
                 .certificate = config.etcd.certificate,
                 .key = config.etcd.key},
         .fleet = config.fleet,
         .wait_limit = std::chrono::milliseconds(0)});
    auto read = store ? (*store)->read() : fail(store.error());
    if (read)
      record = described(*read);
    else
      failures.push_back(read.error().message());
  }
  const std::size_t members = config.etcd.members.size();
  const std::size_t answering = members - failures.size();
  if (failures.empty())
    return {kDecisionsCheck, CheckStatus::kOk,
            fmt::format("etcd has the decisions of fleet '{}': {}; {} with a majority",
                        config.fleet, record, counted(members, "member")),
            ""};
  return {kDecisionsCheck, answering == 0 ? CheckStatus::kFail : CheckStatus::kWarn,
          answering == 0 ? failures.front()
                         : fmt::format("{} of {} etcd members do not answer: {}", failures.size(),
                                       members, fmt::join(failures, "; ")),
          answering == 0 ? "no trainer starts, and nothing is decided, until a majority of the "
                           "members runs; check decision_store and etcd.*"
                         : "nothing is decided when no majority is left"};
}

}  // namespace wsync::cli
