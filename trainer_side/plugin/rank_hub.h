// RankHub: rank 0's side of the connections to the other ranks. It passes their reports to a
// RankGather, and sends them the status of each publish.
//
// Thread: the loop's. The loop and the gather must outlive the hub.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "shared/control/unix_stream.h"
#include "shared/loop/loop.h"
#include "shared/loop/process_watch.h"
#include "shared/loop/timer.h"
#include "trainer_side/plugin/rank_gather.h"

namespace wsync::plugin {

class RankHub {
 public:
  // Listens at `path`. Errors as control::UnixListener::create().
  [[nodiscard]] static Result<std::unique_ptr<RankHub>> listen(Loop& loop, const std::string& path,
                                                               RankGather& gather,
                                                               Claim how = Claim::kIfFree);
  // Sends the status to every connected rank.
  void notify(const control::PublishStatus& status);

 private:
  struct Peer {
    std::unique_ptr<control::UnixStream> stream;
    // Null if the process cannot be watched. Its end is noticed even if a child has the socket.
    std::unique_ptr<ProcessWatch> watch;
    std::optional<RankProcess> process;  // set after its hello message
    std::unique_ptr<Timer> hello;        // deadline of the hello message
  };
  RankHub(Loop& loop, RankGather& gather) : loop_(loop), gather_(gather) {}
  void accept(UniqueFd socket, const PeerCredentials& peer);
  void handle_frame(std::uint64_t id, control::Frame frame);
  [[nodiscard]] Result<> handle(std::uint64_t id, Peer& peer, control::Frame& frame);
  [[nodiscard]] Result<> greet(std::uint64_t id, Peer& peer, const control::RankHello& hello);
  void refuse(std::uint64_t id, const Error& error);
  void drop(std::uint64_t id, const Error& error);

  Loop& loop_;
  RankGather& gather_;
  std::map<std::uint64_t, Peer> peers_;
  std::uint64_t next_peer_ = 1;
  control::PublishStatus notified_;  // status of the newest step
  std::unique_ptr<control::UnixListener> listener_;
};

}  // namespace wsync::plugin
