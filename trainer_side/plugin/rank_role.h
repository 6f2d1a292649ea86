// RankRole: the work of one rank of a trainer on its loop. Rank 0 publishes (LeaderRank); the other
// ranks send their snapshots to rank 0 (FollowerRank).
//
// Thread: the loop's. The destructor waits for running tensor callbacks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shared/config/trainer_config.h"
#include "shared/loop/loop.h"
#include "trainer_side/plugin/publish_board.h"
#include "trainer_side/publish/draft.h"
#include "trainer_side/publish/gathered_source.h"

namespace wsync::plugin {

using RankTensors = std::shared_ptr<const std::vector<publish::RankTensor>>;

struct PublishOrder {
  std::uint64_t id = 0;  // number on the board
  std::uint64_t step = 0;
  RankTensors tensors;
  // The bytes of these tensors, if they have been written in place; sealed. Otherwise null.
  std::shared_ptr<publish::Draft> draft;
};

// Where this rank writes a version in place.
struct DraftMemory {
  std::shared_ptr<publish::Snapshotter> snapshotter;
  std::uint64_t bucket_bytes = 0;
};

struct RankSettings {
  config::TrainerConfig config;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  bool keeps_snapshots = true;    // as in TrainerOptions
  std::uint32_t incarnation = 0;  // number of times the process of this rank was replaced
  // Called if this rank can no longer publish: a newer coordinator controls the fleet (kFenced),
  // another process is now this rank (kFenced), or the epoch could not be stored. Called on the
  // loop.
  std::function<void(const Error& reason)> on_stopped;
};

class RankRole {
 public:
  virtual ~RankRole() = default;
  virtual void publish(PublishOrder order) = 0;
  // Thread: any. The other functions are the loop's.
  [[nodiscard]] virtual DraftMemory draft_memory() const = 0;
  // As TrainerAgent::draft_awaits_memory(); rank 0 of one rank only.
  virtual void draft_awaits_memory(std::uint64_t /*step*/) {}
  virtual void give_up(std::uint64_t step) = 0;    // as TrainerAgent::give_up(); rank 0 only
  virtual void no_more(std::uint64_t /*step*/) {}  // as RankGather::no_more(); rank 0 only
  // As RankGather::expect(); rank 0 only. Thread: any.
  virtual void expect(std::uint64_t /*step*/) {}
  virtual void roll_back(const Version& to,
                         std::function<void(Result<control::RollbackReply>)> on_done) = 0;
};

// The board must outlive both. Errors: kBusy and kIo as TrainerAgent::create() and
// UnixListener::create().
[[nodiscard]] Result<std::unique_ptr<RankRole>> make_leader_rank(Loop& loop,
                                                                 const RankSettings& settings,
                                                                 PublishBoard& board);
[[nodiscard]] Result<std::unique_ptr<RankRole>> make_follower_rank(Loop& loop,
                                                                   const RankSettings& settings,
                                                                   PublishBoard& board);
// Returns the path of the socket on which rank 0 listens for the other ranks.
[[nodiscard]] std::string rank_socket(const config::TrainerConfig& config);

}  // namespace wsync::plugin
