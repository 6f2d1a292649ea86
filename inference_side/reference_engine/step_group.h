// Connects the ranks of one replica over a Unix socket. The leader (rank 0) listens; the followers
// connect, and reconnect after a loss. Carries the messages of step_protocol.h.
//
// The group is whole when every follower has joined. The leader then sends a stop header first, so
// that every group begins with all ranks outside of steps. The group breaks if a rank is lost, if a
// message arrives that is not expected, or if a rank is silent inside a step. The leader then
// closes every connection, which notifies every rank, and the current step is dropped. Ranks that
// exchange messages inside a step use shared memory that the leader creates anew for each group.
//
// Thread: each object is confined to one thread. Every wait has a deadline.
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

// Path of the socket where the ranks of a replica meet. It is in the private run directory of their
// host, the same for all ranks of the replica and different for every other replica.
[[nodiscard]] std::string step_socket_path(const std::string& run_directory,
                                           const std::string& replica);

struct GroupOptions {
  std::string path;  // result of step_socket_path()
  std::uint32_t world_size = 1;
  std::uint32_t rank = 0;
  std::chrono::milliseconds step_deadline{limits::kStepDeadlineMs};  // of each wait inside a step
  // Leader: size of the rings with which ranks exchange messages inside a step
  // (HostSegmentOptions::channel_bytes); 0 if they exchange none.
  std::uint64_t channel_bytes = 0;
  std::uint64_t agreement = 0;  // digest of what all ranks must have in common
};

// Waits until one of `fds` is readable or until `until`. An interrupted wait returns early.
void wait_for_any(std::span<const int> fds, TimePoint until);

// One connection, which sends and receives whole messages.
class StepChannel {
 public:
  explicit StepChannel(UniqueFd socket) : socket_(std::move(socket)) {}
  // Sends `descriptor` with the message if it is not negative.
  [[nodiscard]] Result<> send(const StepMessage& message, TimePoint deadline, int descriptor = -1);
  // Returns a received message, or std::nullopt if none has arrived. Returns kPeerLost at the end
  // of the connection, kInvalidInput for invalid bytes.
  [[nodiscard]] Result<std::optional<StepMessage>> receive();
  // Moves out the descriptor that was received last, if there is one.
  [[nodiscard]] UniqueFd take_descriptor() noexcept { return std::move(descriptor_); }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::array<std::byte, kStepMessageBytes> buffer_{};
  std::size_t have_ = 0;
  UniqueFd descriptor_;
};

// Computes this rank's share of a step.
using ReadWeights = std::function<Result<Reading>()>;

class GroupLeader {
 public:
  // Binds the socket; a group of one rank needs none. Errors as ListeningSocket::bind().
  [[nodiscard]] static Result<GroupLeader> create(GroupOptions options);

  // Whether every follower has joined and has answered the first stop.
  [[nodiscard]] bool whole() const noexcept { return whole_; }
  [[nodiscard]] std::uint32_t joined() const noexcept;  // including the leader
  // The highest step number that was begun here or that a follower reported.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }

  // Call between steps, while not serving or before the next step. Accepts followers, detects
  // losses, and waits until `until` or until `wake_fd` is readable. Returns an error if the group
  // was whole and broke during this call.
  [[nodiscard]] Result<> tend(TimePoint until, int wake_fd);

  struct StepEnd {
    std::optional<LeaderStep::Refusal> refusal;  // present: the step was aborted in all ranks
    Reading total;                               // otherwise: the reduction over all ranks
  };
  // Executes one serving step; the group must be whole. Calls `read` for this rank's share after
  // all ranks have agreed. Returns an error if the group broke inside the step.
  [[nodiscard]] Result<StepEnd> go(const Version& version, const ReadWeights& read);
  // Sends a stop header. On success every follower has stopped serving after step step().
  [[nodiscard]] Result<> stop();
  // All ranks of a whole group; only this rank if the ranks exchange no messages.
  [[nodiscard]] const collective::Team& team() const noexcept { return team_; }

 private:
  struct Pending {  // connected, but has not sent its join yet
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
  std::unique_ptr<PeerWatch> watch_;  // watches the members while the group is whole
};

// The callbacks with which a follower executes the leader's messages. They are called on the thread
// that calls tend().
class FollowerRole {
 public:
  virtual ~FollowerRole() = default;
  // A step of `version` has begun: enter it. An error refuses the step. The refusal carries `holds`
  // to the leader.
  [[nodiscard]] virtual Result<> enter(std::uint64_t step, const Version& version) = 0;
  [[nodiscard]] virtual Version holds() = 0;
  // Every rank agreed: read the weights. `team` as GroupLeader::team(). An error breaks the group.
  [[nodiscard]] virtual Result<Reading> read(const collective::Team& team) = 0;
  // The step has ended. It gives the reduction over all ranks, or says that the step was aborted.
  virtual void finish(std::uint64_t step, const Reading& total) = 0;
  virtual void abort(std::uint64_t step) = 0;
  // Stop serving after `step`.
  virtual void stop(std::uint64_t step) = 0;
};

class GroupFollower {
 public:
  GroupFollower(GroupOptions options, FollowerRole& role)
      : options_(std::move(options)), role_(&role) {}

  // Whether the leader has sent a header on this connection.
  [[nodiscard]] bool member() const noexcept { return member_; }
  // Step number of the newest header.
  [[nodiscard]] std::uint64_t step() const noexcept { return follower_.step(); }
  // Handles the leader's messages, and connects if there is no connection. Waits until `until` or
  // until `wake_fd` is readable. Returns an error if this rank was a member and its group broke
  // during this call; the rank must then leave its step and pause.
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
  TimePoint owed_until_{};              // deadline of the leader's next message inside a step
  std::unique_ptr<collective::ProcessGroup> ranks_;
  collective::Team team_;
  std::unique_ptr<PeerWatch> watch_;  // watches the leader while ranks_ exists
};

}  // namespace wsync::engine::reference
