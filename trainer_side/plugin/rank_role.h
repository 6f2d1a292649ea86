// RankRole: what one rank of a trainer does on its loop. Rank 0 coordinates (LeadRank), the others
// hand their snapshots to it (FollowRank).
//
// Thread: the loop's. Destruction waits for the callbacks of tensors that run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shared/config/trainer_config.h"
#include "shared/loop/loop.h"
#include "trainer_side/plugin/publish_board.h"
#include "trainer_side/publish/gathered_source.h"

namespace wsync::plugin {

using RankTensors = std::shared_ptr<const std::vector<publish::RankTensor>>;

struct PublishOrder {
  std::uint64_t id = 0;  // on the board
  std::uint64_t step = 0;
  RankTensors tensors;
};

struct RankSettings {
  config::TrainerConfig config;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t incarnation = 0;  // how often the process of this rank was replaced
  // This rank publishes nothing any more: a newer coordinator has the fleet, another process is
  // this rank now (kFenced both), or its epoch could not be stored. Called on the loop.
  std::function<void(const Error& reason)> on_stopped;
};

class RankRole {
 public:
  virtual ~RankRole() = default;
  virtual void publish(PublishOrder order) = 0;
  virtual void give_up(std::uint64_t step) = 0;    // as TrainerAgent::give_up(); rank 0 only
  virtual void no_more(std::uint64_t /*step*/) {}  // as RankGather::no_more(); rank 0 only
  // As RankGather::expect(); rank 0 only. Thread: any.
  virtual void expect(std::uint64_t /*step*/) {}
  virtual void roll_back(const Version& to,
                         std::function<void(Result<control::RollbackReply>)> on_done) = 0;
};

// Both need the board for as long as they live. Errors: kBusy, kIo as TrainerAgent::create() and
// UnixListener::create().
[[nodiscard]] Result<std::unique_ptr<RankRole>> make_lead_rank(Loop& loop,
                                                               const RankSettings& settings,
                                                               PublishBoard& board);
[[nodiscard]] Result<std::unique_ptr<RankRole>> make_follow_rank(Loop& loop,
                                                                 const RankSettings& settings,
                                                                 PublishBoard& board);
// Where the ranks of a trainer meet.
[[nodiscard]] std::string rank_socket(const config::TrainerConfig& config);

}  // namespace wsync::plugin
