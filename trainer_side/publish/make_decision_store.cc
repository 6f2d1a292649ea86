#include "trainer_side/publish/make_decision_store.h"

#include <filesystem>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/unix_socket.h"
#include "trainer_side/coordinator/etcd/etcd_decision_store.h"

namespace wsync::publish {

Result<std::unique_ptr<coordinator::DecisionStore>> make_decision_store(
    const config::TrainerConfig& config, DecisionStoreCallbacks callbacks) {
  const Claim claims = config.take_over ? Claim::kTakeOver : Claim::kIfFree;
  if (config.etcd.members.empty())
    return std::make_unique<coordinator::FileDecisionStore>(
        std::filesystem::path(config.state_dir) / config.fleet, claims);
  return WSYNC_TRY(coordinator::etcd::EtcdDecisionStore::create(
      {.members = config.etcd.members,
       .tls = {.authorities = config.etcd.authorities,
               .certificate = config.etcd.certificate,
               .key = config.etcd.key},
       .fleet = config.fleet,
       .claims = claims,
       .self = fmt::format("process {} of host {} at {}", ::getpid(), host_name(), config.listen),
       .on_trouble = std::move(callbacks.on_trouble),
       .on_lease_ended = std::move(callbacks.on_lease_ended),
       .on_replaced = std::move(callbacks.on_replaced)}));
}

}  // namespace wsync::publish
