// RankHub: rank 0's side of the connections to the other ranks. It passes their reports to a
// RankGather, and sends them the status of each publish. Ranks on its host are connected by a Unix
// socket, those on other hosts by the control port.
//
// Thread: the loop's. The loop and the gather must outlive the hub.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "shared/control/unix_stream.h"
#include "shared/loop/loop.h"
#include "shared/loop/process_watch.h"
#include "shared/loop/timer.h"
#include "trainer_side/plugin/kept_parts.h"
#include "trainer_side/plugin/rank_gather.h"

namespace wsync::plugin {

class RankHub {
 public:
  // What the hub needs for ranks on other hosts.
  struct Remote {
    // Sends a message to a peer of the control port; dropped if it cannot be sent.
    std::function<void(const std::string& peer, control::Message message)> send;
    // A sentence for operators.
    std::function<void(const std::string&)> report;
  };
  // Listens at `path`. Errors as control::UnixListener::create(). `remote`: empty if no rank is on
  // another host.
  [[nodiscard]] static Result<std::unique_ptr<RankHub>> listen(Loop& loop, const std::string& path,
                                                               RankGather& gather,
                                                               Claim how = Claim::kIfFree,
                                                               Remote remote = {});
  // Sends the status to every connected rank.
  void notify(const control::PublishStatus& status);
  // A message of a rank on another host, whose peer the control port names.
  void handle_remote(const std::string& peer, control::Message message);
  // The control port has lost this peer. It may be none of a rank.
  void lose_remote(const std::string& peer, const Error& why);
  // Which parts ranks on other hosts keep.
  [[nodiscard]] KeptParts& parts() noexcept { return parts_; }

 private:
  struct Peer {
    std::unique_ptr<control::UnixStream> stream;  // null: it is on another host
    std::string remote;                           // then: its name at the control port
    // Null if the process cannot be watched. Its end is noticed even if a child has the socket.
    std::unique_ptr<ProcessWatch> watch;
    std::optional<RankProcess> process;  // set after its hello message
    std::unique_ptr<Timer> hello;        // deadline of the hello message
  };
  RankHub(Loop& loop, RankGather& gather, Remote remote);
  [[nodiscard]] Result<> send(const Peer& peer, control::Message message);
  void send_to_rank(std::uint32_t rank, control::Message message);
  void accept(UniqueFd socket, const PeerCredentials& peer);
  void handle_frame(std::uint64_t id, control::Frame frame);
  [[nodiscard]] Result<> handle(std::uint64_t id, Peer& peer, control::Frame& frame);
  // What only a rank on another host sends; std::nullopt for anything else.
  [[nodiscard]] std::optional<Result<>> handle_part(const Peer& peer, control::Message& message);
  [[nodiscard]] Result<> greet(std::uint64_t id, Peer& peer, const control::RankHello& hello);
  void refuse(std::uint64_t id, const Error& error);
  void drop(std::uint64_t id, const Error& error);

  Loop& loop_;
  RankGather& gather_;
  const Remote remote_ranks_;
  KeptParts parts_;
  std::map<std::uint64_t, Peer> peers_;
  std::map<std::string, std::uint64_t> remote_;  // of peers_, by name
  std::uint64_t next_peer_ = 1;
  control::PublishStatus notified_;  // status of the newest step
  std::unique_ptr<control::UnixListener> listener_;
};

}  // namespace wsync::plugin
