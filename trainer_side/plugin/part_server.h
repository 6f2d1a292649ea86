// PartServer: what a rank on another host than rank 0 serves: its part of each version that rank 0
// keeps. The bytes stay in the arena of the rank's own snapshot, and sidecars fetch them from here.
//
// Thread: the loop's. Parts are summed on a worker of its own. The loop must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "shared/config/trainer_config.h"
#include "shared/control/rank_messages.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"
#include "shared/transport/transport.h"
#include "shared/weights/leaf_table.h"
#include "trainer_side/publish/gathered_source.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::plugin {

class PartServer {
 public:
  // Binds the data address. Errors as make_transports() and Transport::listen(); kInvalidInput if
  // the configuration permits no transport that copies. `threads`: that sum a part.
  [[nodiscard]] static Result<std::unique_ptr<PartServer>> create(
      Loop& loop, const config::TrainerConfig& config, std::uint32_t rank, unsigned threads);
  PartServer(const PartServer&) = delete;
  PartServer& operator=(const PartServer&) = delete;
  ~PartServer();

  // Where it serves, for rank 0.
  [[nodiscard]] control::RankServes serves() const;
  // Sums the part of the snapshot, whose shards are `tensors` in the order of RankShards, and keeps
  // it until keep() lacks its step. `answer` is called once, on the loop.
  void want(const control::PartWanted& wanted, std::shared_ptr<const publish::Snapshot> snapshot,
            const std::vector<publish::RankTensor>& tensors,
            std::function<void(control::PartSummed)> answer);
  // The answer of a rank that cannot serve its part; an answer without sums, if `why` is empty.
  [[nodiscard]] static control::PartSummed refusal(const control::PartWanted& wanted,
                                                   std::string why);
  // Gives up all parts that are not named, and serves those that have a version.
  void keep(const control::PartsKept& kept);
  [[nodiscard]] std::size_t kept_count() const noexcept { return parts_.size(); }

 private:
  struct Server {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::BucketSource> source;
  };
  // The part of one step.
  struct Part {
    std::shared_ptr<const publish::Snapshot> snapshot;
    std::vector<transport::BucketWindow> buckets;  // of the version; empty ones are not of the part
    std::vector<std::uint32_t> own;                // those of the part
    std::shared_ptr<const LeafTable> leaves;       // at their place in the snapshot
    std::vector<WordSum> sums;                     // of these; empty: not yet
    Version served;                                // 0.0: not yet
  };
  explicit PartServer(Loop& loop) : worker_(loop, {.name = "part"}) {}
  // Where the windows lie in the snapshot. kInvalidInput if one is outside of its shard.
  [[nodiscard]] static Result<Part> lay_out(const control::PartWanted& wanted,
                                            std::shared_ptr<const publish::Snapshot> snapshot,
                                            const std::vector<publish::RankTensor>& tensors);
  void offer(Part& part, const control::KeptPart& kept);
  void withdraw(const Part& part);

  std::vector<Server> servers_;
  std::optional<transport::PairSecret> secret_;
  unsigned threads_ = 1;
  std::map<std::uint64_t, std::shared_ptr<Part>> parts_;  // by step
  std::stop_source stop_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Worker worker_;
};

}  // namespace wsync::plugin
