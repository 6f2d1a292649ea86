#include "inference_side/reference_engine/step_group.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <poll.h>

#include "inference_side/reference_engine/step_limits.h"
#include "shared/base/check.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"

namespace wsync::engine::reference {
namespace {

collective::Team team_of(collective::ProcessGroup& ranks) {
  std::vector<std::uint32_t> members(ranks.size());
  std::iota(members.begin(), members.end(), 0U);
  return {&ranks, std::move(members)};
}

}  // namespace

std::string step_socket_path(const std::string& run_directory, const std::string& replica) {
  constexpr std::size_t kReadableBytes = 24;
  const bool readable =
      !replica.empty() && replica.size() <= kReadableBytes &&
      std::ranges::all_of(replica, [](unsigned char c) { return std::isalnum(c) || c == '-'; });
  // Use a digest of any other name. The digest is short, contains no separators, and never equals a
  // readable name.
  const std::string name =
      readable ? replica : "_" + digest_of(std::as_bytes(std::span(replica))).to_string();
  return fmt::format("{}/steps-{}.sock", run_directory, name);
}

void wait_for_any(std::span<const int> fds, TimePoint until) {
  std::vector<pollfd> wanted;
  for (const int fd : fds)
    if (fd >= 0) wanted.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  const auto left = std::max<std::int64_t>(0, (until - now()).count());
  const timespec timeout{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
  // Ignore the result, for example EINTR or ENOMEM: the caller checks all descriptors again anyway.
  (void)::ppoll(wanted.data(), wanted.size(), &timeout, nullptr);
}

// ---- channel ----

Result<> StepChannel::send(const StepMessage& message, TimePoint deadline, int descriptor) {
  const auto bytes = encode(message);
  const std::array fds{descriptor};
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const bool with = descriptor >= 0 && sent == 0;
    const auto some =
        WSYNC_TRY(send_some(socket_.get(), std::span(bytes).subspan(sent),
                            with ? std::span<const int>(fds) : std::span<const int>()));
    sent += some;
    if (some == 0) WSYNC_TRY(wait_writable(socket_.get(), deadline));
  }
  return {};
}

Result<std::optional<StepMessage>> StepChannel::receive() {
  while (have_ < buffer_.size()) {
    std::vector<UniqueFd> fds;  // descriptors after the first are closed here
    const auto some =
        WSYNC_TRY(receive_some(socket_.get(), std::span(buffer_).subspan(have_), fds));
    if (!fds.empty()) descriptor_ = std::move(fds.front());
    if (some == 0) return std::nullopt;
    have_ += some;
  }
  have_ = 0;
  const auto message = WSYNC_TRY(decode(buffer_));
  return message;
}

// ---- leader ----

Result<GroupLeader> GroupLeader::create(GroupOptions options) {
  WSYNC_CHECK(options.rank == 0 && options.world_size >= 1, "rank 0 leads");
  GroupLeader leader(std::move(options));
  if (leader.options_.world_size == 1) {
    leader.whole_ = true;
    return leader;
  }
  auto listener = WSYNC_TRY(ListeningSocket::bind(leader.options_.path));
  leader.listener_.emplace(std::move(listener));
  return leader;
}

std::uint32_t GroupLeader::joined() const noexcept {
  return 1 + static_cast<std::uint32_t>(
                 std::ranges::count_if(members_, [](const auto& m) { return m.has_value(); }));
}

void GroupLeader::break_up() noexcept {
  watch_.reset();
  // Wakes ranks that wait for a message inside a step.
  if (segment_) segment_->abort(Error(ErrorCode::kPeerLost, "the group of the replica broke"));
  team_ = {};
  ranks_.reset();
  segment_.reset();
  for (auto& member : members_) member.reset();
  whole_ = options_.world_size == 1;
}

void GroupLeader::accept_all() {
  while (pending_.size() < 2 * options_.world_size) {
    auto accepted = listener_->accept();
    if (!accepted) {
      log_warning("steps at {}: {}", options_.path, accepted.error().message());
      return;
    }
    if (!accepted->has_value()) return;
    pending_.push_back({.channel = StepChannel(std::move((*accepted)->socket)),
                        .until = now() + std::chrono::milliseconds(limits::kHelloDeadlineMs)});
  }
}

// Returns whether the connection is a member now. The caller closes it otherwise.
bool GroupLeader::take(StepChannel& channel, const StepMessage& message) {
  const char* wrong = nullptr;
  if (message.kind != StepKind::kJoin || message.rank == 0 || message.rank >= options_.world_size ||
      message.world_size != options_.world_size)
    wrong = "it is not a follower of this replica";
  else if (message.value != options_.agreement)
    wrong = "its model or its options differ; start every rank with the same model and options";
  else if (members_[message.rank])
    wrong = "that rank has already joined";
  if (wrong != nullptr) {
    log_warning("steps at {}: rank {} of {} was refused: {}", options_.path, message.rank,
                message.world_size, wrong);
    return false;
  }
  step_ = std::max(step_, message.step);
  members_[message.rank].emplace(std::move(channel));
  return true;
}

void GroupLeader::read_joins() {
  std::erase_if(pending_, [&](Pending& pending) {
    const auto message = pending.channel.receive();
    if (!message) return true;
    if (!message->has_value()) return now() >= pending.until;
    (void)take(pending.channel, **message);
    return true;
  });
}

// Followers send nothing between steps, so a readable socket means a lost or faulty peer.
Result<> GroupLeader::check_members() {
  for (std::uint32_t rank = 1; rank < members_.size(); ++rank) {
    if (!members_[rank]) continue;
    const auto message = members_[rank]->receive();
    if (message && !message->has_value()) continue;
    const Error why = message
                          ? Error(ErrorCode::kInvalidInput, "it sent a message outside of a step")
                          : message.error();
    const bool was_whole = whole_;
    // A group that is still being formed keeps its other members.
    members_[rank].reset();
    if (!was_whole) continue;
    break_up();
    return fail(why.with_context(fmt::format("rank {} was lost", rank)));
  }
  return {};
}

Result<> GroupLeader::form() {
  if (whole_ || joined() < options_.world_size) return {};
  if (const auto connected = connect_ranks(); !connected) {
    break_up();
    log_warning("steps at {}: the group was not formed: {}", options_.path,
                connected.error().message());
    return {};
  }
  LeaderStep first(options_.world_size, {.kind = StepKind::kStop, .step = step_});
  if (const auto stopped = run(first, {}); !stopped) {
    log_info("steps at {}: the group was not formed: {}", options_.path, stopped.error().message());
    return {};
  }
  whole_ = true;
  log_debug("steps at {}: all {} ranks are connected", options_.path, options_.world_size);
  return {};
}

// Creates the shared memory with which ranks exchange messages. The first header carries it to the
// followers.
Result<> GroupLeader::connect_ranks() {
  if (options_.channel_bytes == 0) return {};
  auto segment = WSYNC_TRY(collective::memory::HostSegment::create(
      {.size = options_.world_size, .channel_bytes = options_.channel_bytes}));
  auto own = WSYNC_TRY(segment.attach(0));
  segment_ = std::make_unique<collective::memory::HostSegment>(std::move(segment));
  ranks_ = std::move(own);
  team_ = team_of(*ranks_);
  std::vector<int> sockets;
  for (std::uint32_t rank = 1; rank < members_.size(); ++rank)
    sockets.push_back(members_[rank]->fd());
  watch_ =
      std::make_unique<PeerWatch>(std::move(sockets), [ranks = segment_.get()](std::size_t index) {
        ranks->abort(Error(ErrorCode::kPeerLost, fmt::format("rank {} was lost", index + 1)));
      });
  return {};
}

Result<> GroupLeader::tend(TimePoint until, int wake_fd) {
  if (options_.world_size == 1) {
    wait_for_any(std::array{wake_fd}, until);
    return {};
  }
  std::vector<int> fds{wake_fd, listener_->fd()};
  for (const auto& member : members_)
    if (member) fds.push_back(member->fd());
  TimePoint wait_until = until;
  for (const Pending& pending : pending_) {
    fds.push_back(pending.channel.fd());
    wait_until = std::min(wait_until, pending.until);
  }
  wait_for_any(fds, wait_until);
  WSYNC_TRY(check_members());
  accept_all();
  read_joins();
  return form();
}

Result<> GroupLeader::send_all(const StepMessage& message, int descriptor) {
  const TimePoint deadline = now() + options_.step_deadline;
  for (std::uint32_t rank = 1; rank < members_.size(); ++rank)
    if (const auto sent = members_[rank]->send(message, deadline, descriptor); !sent)
      return fail(sent.error().with_context(fmt::format("rank {} was lost", rank)));
  return {};
}

// Receives until the phase of the step changes, or until only the leader's own share is missing.
Result<> GroupLeader::gather(LeaderStep& step) {
  const LeaderStep::Phase phase = step.phase();
  const TimePoint deadline = now() + options_.step_deadline;
  std::vector<int> fds;
  for (std::uint32_t rank = 1; rank < members_.size(); ++rank) fds.push_back(members_[rank]->fd());
  for (;;) {
    for (std::uint32_t rank = 1; rank < members_.size() && step.phase() == phase; ++rank) {
      auto message = members_[rank]->receive();
      if (!message)
        return fail(message.error().with_context(fmt::format("rank {} was lost", rank)));
      if (message->has_value()) WSYNC_TRY(step.handle(rank, **message));
    }
    if (step.phase() != phase) return {};
    if (now() >= deadline)
      return fail(ErrorCode::kDeadline,
                  fmt::format("a rank did not answer within {} ms inside step {}",
                              options_.step_deadline.count(), step_));
    wait_for_any(fds, deadline);
  }
}

Result<> GroupLeader::run(LeaderStep& step, const ReadWeights& read) {
  const auto body = [&]() -> Result<> {
    WSYNC_TRY(send_all(step.header(), whole_ || !segment_ ? -1 : segment_->descriptor()));
    if (step.phase() == LeaderStep::Phase::kAgreeing) WSYNC_TRY(gather(step));
    if (step.phase() == LeaderStep::Phase::kAborted)
      return send_all({.kind = StepKind::kAborted, .step = step.header().step});
    if (step.header().kind == StepKind::kStop) return {};
    WSYNC_TRY(send_all({.kind = StepKind::kProceed, .step = step.header().step}));
    const auto own = WSYNC_TRY(read());
    step.add_own(own);
    if (step.phase() == LeaderStep::Phase::kComputing) WSYNC_TRY(gather(step));
    return send_all({.kind = StepKind::kTotal,
                     .torn = step.total().torn,
                     .step = step.header().step,
                     .value = step.total().value});
  };
  auto done = body();
  if (!done) break_up();
  return done;
}

Result<GroupLeader::StepEnd> GroupLeader::go(const Version& version, const ReadWeights& read) {
  WSYNC_CHECK(whole_, "a step needs every rank");
  LeaderStep step(options_.world_size,
                  {.kind = StepKind::kGo, .step = ++step_, .version = version});
  WSYNC_TRY(run(step, read));
  return StepEnd{.refusal = step.refusal(), .total = step.total()};
}

Result<> GroupLeader::stop() {
  WSYNC_CHECK(whole_, "a stop header needs every rank");
  LeaderStep step(options_.world_size, {.kind = StepKind::kStop, .step = step_});
  return run(step, {});
}

// ---- follower ----

void GroupFollower::connect() {
  const auto later = [&](const Error& why) {
    log_debug("rank {} cannot reach its leader: {}", options_.rank, why.message());
    pause_ = std::clamp(pause_ * 2, std::chrono::milliseconds(limits::kReconnectMinMs),
                        std::chrono::milliseconds(limits::kStepReconnectMaxMs));
    next_attempt_ = now() + pause_;
  };
  auto socket = connect_unix(options_.path, TimePoint{0});
  if (!socket) return later(socket.error());
  StepChannel channel(std::move(*socket));
  const StepMessage join{.kind = StepKind::kJoin,
                         .rank = options_.rank,
                         .world_size = options_.world_size,
                         .step = follower_.step(),
                         .value = options_.agreement};
  if (const auto sent = channel.send(join, now() + options_.step_deadline); !sent)
    return later(sent.error());
  channel_.emplace(std::move(channel));
  follower_.reset();
}

// Maps the shared memory of a new group, if its ranks exchange messages.
Result<> GroupFollower::join_ranks(UniqueFd segment) {
  if (!segment.valid()) return {};
  watch_.reset();
  auto ranks = collective::memory::attach(segment.get(), options_.rank);
  if (!ranks) return fail(std::move(ranks).error());
  ranks_ = std::move(*ranks);
  team_ = team_of(*ranks_);
  watch_ = std::make_unique<PeerWatch>(
      std::vector{channel_->fd()}, [ranks = ranks_.get()](std::size_t /*index*/) {
        ranks->abort(Error(ErrorCode::kPeerLost, "the leader was lost"));
      });
  return {};
}

Result<> GroupFollower::lose(Error error) {
  watch_.reset();
  team_ = {};
  ranks_.reset();
  channel_.reset();
  follower_.reset();
  if (!member_) {  // rejected, or the leader left before the group was formed
    pause_ = std::clamp(pause_ * 2, std::chrono::milliseconds(limits::kReconnectMinMs),
                        std::chrono::milliseconds(limits::kStepReconnectMaxMs));
    next_attempt_ = now() + pause_;
    return {};
  }
  member_ = false;
  pause_ = {};
  next_attempt_ = {};
  return fail(std::move(error).with_context("the group of the replica broke"));
}

Result<> GroupFollower::answer(StepMessage message) {
  message.rank = options_.rank;
  message.step = follower_.step();
  return channel_->send(message, now() + options_.step_deadline);
}

Result<> GroupFollower::act(const StepMessage& message) {
  const auto action = WSYNC_TRY(follower_.handle(message));
  member_ = true;
  const std::uint64_t step = follower_.step();
  switch (action) {
    case FollowerAction::kEnter: {
      const auto entered = role_->enter(step, message.version);
      follower_.answered(entered.has_value());
      if (entered) return answer({.kind = StepKind::kReady, .version = message.version});
      log_info("rank {} refuses step {}: {}", options_.rank, step, entered.error().message());
      return answer({.kind = StepKind::kRefused, .version = role_->holds()});
    }
    case FollowerAction::kStop:
      WSYNC_TRY(join_ranks(channel_->take_descriptor()));
      role_->stop(step);
      return answer({.kind = StepKind::kStopped});
    case FollowerAction::kCompute: {
      const auto reading = WSYNC_TRY(role_->read(team_));
      return answer({.kind = StepKind::kPartial, .torn = reading.torn, .value = reading.value});
    }
    case FollowerAction::kLeave:
      role_->abort(step);
      return {};
    case FollowerAction::kFinish:
      role_->finish(step, {.value = message.value, .torn = message.torn});
      return {};
  }
  return {};
}

Result<> GroupFollower::tend(TimePoint until, int wake_fd) {
  if (!channel_ && now() >= next_attempt_) connect();
  if (!channel_) {
    wait_for_any(std::array{wake_fd}, std::min(until, next_attempt_));
    return {};
  }
  // Handle one message that is already there. Any further message waits for the next call.
  auto message = channel_->receive();
  if (message && !message->has_value()) {
    if (follower_.owed() && now() >= owed_until_)
      return lose(Error(ErrorCode::kDeadline,
                        fmt::format("the leader was silent for {} ms inside step {}",
                                    options_.step_deadline.count(), follower_.step())));
    wait_for_any(std::array{wake_fd, channel_->fd()},
                 follower_.owed() ? std::min(until, owed_until_) : until);
    message = channel_->receive();
  }
  if (!message) return lose(message.error());
  if (!message->has_value()) return {};
  pause_ = {};
  if (auto done = act(**message); !done) return lose(std::move(done).error());
  owed_until_ = now() + options_.step_deadline;
  return {};
}

}  // namespace wsync::engine::reference
