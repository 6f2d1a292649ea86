// The ranks of one replica over a Unix socket: the leader (rank 0) listens, the followers connect
// and connect again. Carries the led steps of step_protocol.h.
//
// The group is whole when every follower has joined; the leader then opens a stop header first, so
// that a group always begins with every rank outside of steps. A lost rank, a message that is out
// of place or a rank that is silent inside a step breaks the group: the leader closes every
// connection, so every rank learns of it, and what was open is dropped. Ranks that pass messages
// inside a step do so in shared memory that the leader makes anew for each group.
//
// Thread: each object is confined to one. Every wait has a deadline.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reference_engine/peer_watch.h"
#include "inference_side/reference_engine/step_limits.h"
#include "inference_side/reference_engine/step_protocol.h"
#include "shared/base/clock.h"
#include "shared/base/unix_socket.h"
#include "shared/process_group/collectives.h"
#include "shared/process_group/memory/host_segment.h"

namespace wsync::engine::reference {

// Where the ranks of a replica meet: a socket in the (private) run directory of their host, the
// same for all of them and for no other replica.
[[nodiscard]] std::string step_socket_path(const std::string& run_directory,
                                           const std::string& replica);

struct GroupOptions {
  std::string path;  // of step_socket_path()
  std::uint32_t world_size = 1;
  std::uint32_t rank = 0;
  std::chrono::milliseconds step_deadline{limits::kStepDeadlineMs};  // of each wait inside a step
  // Leader: inside a step ranks may pass each other messages, through rings of that many bytes
  // (HostSegmentOptions::channel_bytes); 0: they need not.
  std::uint64_t channel_bytes = 0;
  std::uint64_t agreement = 0;  // digest of what all ranks have to have in common
};

// Waits until one of `fds` has something or `until`; an interrupted wait returns early.
void wait_for_any(std::span<const int> fds, TimePoint until);

// One connection: whole messages in, whole messages out.
class StepChannel {
 public:
  explicit StepChannel(UniqueFd socket) : socket_(std::move(socket)) {}
  // `descriptor`: goes with it, if it is not negative.
  [[nodiscard]] Result<> send(const StepMessage& message, TimePoint deadline, int descriptor = -1);
  // What has come, or nothing; kPeerLost at its end, kInvalidInput for what is no message.
  [[nodiscard]] Result<std::optional<StepMessage>> receive();
  // The descriptor that came last, if one has; it is given once.
  [[nodiscard]] UniqueFd take_descriptor() noexcept { return std::move(descriptor_); }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::array<std::byte, kStepMessageBytes> buffer_{};
  std::size_t have_ = 0;
  UniqueFd descriptor_;
};

// This rank's share of a step.
using ReadWeights = std::function<Result<Reading>()>;

class GroupLeader {
 public:
  // Binds the socket; a group of one rank needs none. Errors as ListeningSocket::bind().
  [[nodiscard]] static Result<GroupLeader> create(GroupOptions options);

  // Every follower has joined and has answered the first stop.
  [[nodiscard]] bool whole() const noexcept { return whole_; }
  [[nodiscard]] std::uint32_t joined() const noexcept;  // the leader itself included
  // The number of the last step that was begun here or that a follower knew of.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

  // Between steps, not serving or about to begin one: takes in followers, sees losses, waits until
  // `until` or until `wake_fd` is readable. An error means that the group was whole and broke now.
  [[nodiscard]] Result<> tend(TimePoint until, int wake_fd);

  struct StepEnd {
    std::optional<LeaderStep::Refusal> refusal;  // the step was aborted in all ranks
    Reading total;                               // otherwise: over all ranks
  };
  // One serving step; the group is whole. `read` gives this rank's share once all have agreed.
  // Errors mean that the group broke inside the step.
  [[nodiscard]] Result<StepEnd> go(const Version& version, const ReadWeights& read);
  // A stop header: on success every follower has left off serving after step step().
  [[nodiscard]] Result<> stop();
  // All ranks of a group that is whole; of this one alone when they pass no messages.
  [[nodiscard]] const collective::Team& team() const noexcept { return team_; }

 private:
  struct Pending {  // connected, has not said who it is
    StepChannel channel;
    TimePoint until;
  };
  explicit GroupLeader(GroupOptions options)
      : options_(std::move(options)), members_(options_.world_size) {}
  void accept_all();
  void read_joins();
  [[nodiscard]] bool take(StepChannel& channel, const StepMessage& message);
  [[nodiscard]] Result<> check_members();
  [[nodiscard]] Result<> form();
  [[nodiscard]] Result<> connect_ranks();
  [[nodiscard]] Result<> run(LeaderStep& step, const ReadWeights& read);
  [[nodiscard]] Result<> send_all(const StepMessage& message, int descriptor = -1);
  [[nodiscard]] Result<> gather(LeaderStep& step);
  void break_up() noexcept;

  GroupOptions options_;
  std::optional<ListeningSocket> listener_;
  std::vector<std::optional<StepChannel>> members_;  // by rank; [0] stays empty
  std::vector<Pending> pending_;
  bool whole_ = false;
  std::uint64_t step_ = 0;
  std::unique_ptr<collective::memory::HostSegment> segment_;
  std::unique_ptr<collective::ProcessGroup> ranks_;
  collective::Team team_;
  std::unique_ptr<PeerWatch> watch_;  // of the members, while the group is whole
};

// What a follower does when its leader says so. Called on the thread that tends the group.
class FollowerRole {
 public:
  virtual ~FollowerRole() = default;
  // A step of `version` has begun: enter it. An error refuses it. `holds` is told to the leader
  // with a refusal.
  [[nodiscard]] virtual Result<> enter(std::uint64_t step, const Version& version) = 0;
  [[nodiscard]] virtual Version holds() = 0;
  // Every rank agreed: read the weights. `team`: as GroupLeader::team(). An error breaks the group.
  [[nodiscard]] virtual Result<Reading> read(const collective::Team& team) = 0;
  // The step is over, with the reduction over all ranks; or was aborted.
  virtual void finish(std::uint64_t step, const Reading& total) = 0;
  virtual void abort(std::uint64_t step) = 0;
  // Leave off serving after `step`.
  virtual void stop(std::uint64_t step) = 0;
};

class GroupFollower {
 public:
  GroupFollower(GroupOptions options, FollowerRole& role)
      : options_(std::move(options)), role_(&role) {}

  // The leader has opened a header on this connection.
  [[nodiscard]] bool member() const noexcept { return member_; }
  // Of the newest header.
  [[nodiscard]] std::uint64_t step() const noexcept { return follower_.step(); }
  // Does what the leader says; connects when there is no connection. Waits until `until` or until
  // `wake_fd` is readable. An error means that this rank was a member and its group broke now: it
  // has to leave its step and to pause.
  [[nodiscard]] Result<> tend(TimePoint until, int wake_fd);

 private:
  void connect();
  [[nodiscard]] Result<> act(const StepMessage& message);
  [[nodiscard]] Result<> answer(StepMessage message);
  [[nodiscard]] Result<> join_ranks(UniqueFd segment);
  [[nodiscard]] Result<> lose(Error error);

  GroupOptions options_;
  FollowerRole* role_;
  std::optional<StepChannel> channel_;
  FollowerStep follower_;
  bool member_ = false;
  TimePoint next_attempt_{};
  std::chrono::milliseconds pause_{0};  // between attempts to connect
  TimePoint owed_until_{};              // for the leader's next message inside a step
  std::unique_ptr<collective::ProcessGroup> ranks_;
  collective::Team team_;
  std::unique_ptr<PeerWatch> watch_;  // of the leader, while ranks_ is there
};

}  // namespace wsync::engine::reference
