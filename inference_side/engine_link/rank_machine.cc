#include "inference_side/engine_link/rank_machine.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/base/switch_deadlines.h"
#include "shared/control/codec.h"

namespace wsync::engine {
namespace {

using control::RankState;

constexpr std::array<Transition<RankState>, 30> kTransitions = {{
    {RankState::kLoading, "Load of a rank that copies", RankState::kTainted, "start the load"},
    {RankState::kLoading, "Load of a rank that adopts", RankState::kLoading, "start the load"},
    {RankState::kLoading, "every byte is there, the rank adopts", RankState::kLoaded,
     "answer Loaded"},
    {RankState::kLoading, "the load has failed, the rank adopts", RankState::kLoading,
     "answer Loaded with the reason"},
    {RankState::kLoading, "Pause, or the engine has stopped", RankState::kLoading, "answer Paused"},
    {RankState::kTainted, "Load", RankState::kTainted, "start the load"},
    {RankState::kTainted, "BucketReady of the load", RankState::kTainted,
     "copy the bucket, answer BucketAck"},
    {RankState::kTainted, "every byte is in place", RankState::kLoaded, "answer Loaded"},
    {RankState::kTainted, "the load has failed", RankState::kTainted,
     "answer Loaded with the reason"},
    {RankState::kTainted, "Pause, or the engine has stopped", RankState::kTainted, "answer Paused"},
    {RankState::kLoaded, "Load of a rank that copies", RankState::kTainted, "start the load"},
    {RankState::kLoaded, "Load of a rank that adopts and has an active version", RankState::kPaused,
     "start the load"},
    {RankState::kLoaded, "Load of a rank that adopts and has no active version",
     RankState::kLoading, "start the load"},
    {RankState::kLoaded, "BucketReady, repeated", RankState::kLoaded, "answer BucketAck"},
    {RankState::kLoaded, "Commit", RankState::kPaused, "let the engine commit, answer Committed"},
    {RankState::kLoaded, "Commit, and the engine fails", RankState::kTainted,
     "answer Committed with the reason"},
    {RankState::kLoaded, "Pause, or the engine has stopped", RankState::kLoaded, "answer Paused"},
    {RankState::kPaused, "Load of a rank that copies", RankState::kTainted, "start the load"},
    {RankState::kPaused, "Load of a rank that adopts", RankState::kPaused, "start the load"},
    {RankState::kPaused, "every byte is there, the rank adopts", RankState::kLoaded,
     "answer Loaded"},
    {RankState::kPaused, "the load has failed, the rank adopts", RankState::kPaused,
     "answer Loaded with the reason"},
    {RankState::kPaused, "Commit of the active version, repeated", RankState::kPaused,
     "answer Committed"},
    {RankState::kPaused, "Resume of a leader", RankState::kServing,
     "let the engine resume, answer Resumed"},
    {RankState::kPaused, "the engine runs again", RankState::kServing, ""},
    {RankState::kPaused, "ReadDigests", RankState::kPaused, "answer Digests"},
    {RankState::kPaused, "Pause, or the engine has stopped", RankState::kPaused, "answer Paused"},
    {RankState::kServing, "Pause of a leader", RankState::kServing, "let the engine pause"},
    {RankState::kServing, "the engine has stopped", RankState::kPaused, "answer Paused"},
    {RankState::kServing, "Resume of a leader", RankState::kServing,
     "withdraw a pause that is not answered yet, answer Resumed"},
    {RankState::kServing, "ReadDigests", RankState::kServing, "answer Digests"},
}};

// A list with one action. (A braced list would copy the action.)
RankActions only(RankAction action) {
  RankActions actions;
  actions.push_back(std::move(action));
  return actions;
}

RankActions refuse(const control::Envelope& request, ErrorCode code, std::string why) {
  return only(SendRefusal{.request = request, .code = code, .why = std::move(why)});
}

// An answer that reports the failure of the command. The failure is also recorded.
template <class Reply>
RankActions answer_failure(const control::Envelope& request, Reply reply, const std::string& why) {
  reply.failure = why;
  RankActions actions = only(NoteError{why});
  actions.push_back(SendReply{.request = request, .message = std::move(reply)});
  return actions;
}

}  // namespace

std::string_view rank_state_name(RankState state) noexcept {
  switch (state) {
    case RankState::kLoading:
      return "loading";
    case RankState::kServing:
      return "serving";
    case RankState::kPaused:
      return "paused";
    case RankState::kLoaded:
      return "loaded";
    case RankState::kTainted:
      return "tainted";
  }
  return "unknown";
}

TransitionTable rank_transitions() {
  return describe<RankState>("RankMachine",
                             "One rank of a replica, in the process of the engine. It begins in "
                             "`loading`, or in `serving` when it has weights of its own.",
                             kTransitions, rank_state_name);
}

RankMachine::RankMachine(RankIdentity identity)
    : identity_(std::move(identity)),
      state_(identity_.serving ? RankState::kServing : RankState::kLoading) {}

Result<> RankMachine::move(RankState to) {
  // The planted fault loads into a serving rank, a transition without a row.
  if (!allows<RankState>(kTransitions, state_, to) && !planted("engine_pause_ignored"))
    return fail(ErrorCode::kInternal, fmt::format("the rank cannot go from {} to {}",
                                                  rank_state_name(state_), rank_state_name(to)));
  state_ = to;
  if (to != RankState::kLoaded) loaded_.reset();
  return {};
}

void RankMachine::handle_suspended() {
  // From every state, as a process that ends and begins anew; so the table has no rows for it.
  state_ = RankState::kLoading;
  active_ = {};
  loaded_.reset();
}

std::optional<Version> RankMachine::loading() const {
  if (!load_) return std::nullopt;
  return load_->version;
}

control::Envelope RankMachine::answer_to(const control::Envelope& request) const {
  return {.fence = fence_,
          .round = request.round,
          .request = request.request,
          .replica = identity_.replica,
          .rank = identity_.rank,
          .capabilities = capabilities_};
}

std::string RankMachine::why_no_version() const {
  if (load_)
    return fmt::format("it is loading {}: verify again when it serves it",
                       load_->version.to_string());
  if (loaded_)
    return fmt::format("it has loaded {} and does not serve it yet: verify again when it does",
                       loaded_->to_string());
  if (state_ == RankState::kTainted)
    return "its last load has not ended well, so its memory has no version until the next load: "
           "`wsync status` says why";
  return "it has loaded no version yet: verify again when it serves one";
}

Result<> RankMachine::check_readable(const Version& version) const {
  if (state_ != RankState::kServing && state_ != RankState::kPaused)
    return fail(ErrorCode::kRefused, why_no_version());
  if (active_ != version)
    return fail(ErrorCode::kRefused, fmt::format("the rank moved on to {} while {} was being read",
                                                 active_.to_string(), version.to_string()));
  return {};
}

Result<> RankMachine::invariants() const {
  const auto broken = [&](std::string_view rule) {
    return fail(ErrorCode::kInternal,
                fmt::format("{} rank {}: {}", identity_.replica, identity_.rank, rule));
  };
  if (loaded_.has_value() != (state_ == RankState::kLoaded))
    return broken(fmt::format("the rank is {} and {} a loaded version", rank_state_name(state_),
                              loaded_ ? "has" : "has not"));
  if (load_ && (state_ == RankState::kServing || state_ == RankState::kLoaded))
    return broken(
        fmt::format("a load is in progress while the rank is {}", rank_state_name(state_)));
  if (load_ && !identity_.adopts && state_ != RankState::kTainted)
    return broken("a load copies into a rank that is not tainted");
  if (pending_pause_ && !identity_.leader) return broken("a follower was asked to pause");
  if (prepared_.size() > limits::kStagedCount) return broken("too many versions are prepared");
  if (!welcomed_ && (pending_pause_ || load_ || !prepared_.empty()))
    return broken("a pause, a load or a prepared version of a sidecar exists without a sidecar");
  return {};
}

// ---- frames ----

std::optional<SendRefusal> RankMachine::refusal_of(const control::Envelope& envelope,
                                                   const control::Message& message) const {
  if (envelope.fence < fence_ && !planted("engine_forgets_fence"))
    return SendRefusal{.request = envelope,
                       .code = ErrorCode::kFenced,
                       .why = fmt::format("the fence of epoch {} is older than epoch {}",
                                          envelope.fence.epoch, fence_.epoch)};
  if (envelope.replica != identity_.replica || envelope.rank != identity_.rank)
    return SendRefusal{
        .request = envelope,
        .code = ErrorCode::kInvalidInput,
        .why = fmt::format("the message is for {} rank {}, but this engine is {} rank {}",
                           envelope.replica, envelope.rank, identity_.replica, identity_.rank)};
  const bool greeting = std::holds_alternative<control::EngineWelcome>(message) ||
                        std::holds_alternative<control::Refuse>(message) ||
                        std::holds_alternative<control::ErrorReply>(message);
  if (!welcomed_ && !greeting)
    return SendRefusal{.request = envelope,
                       .code = ErrorCode::kRefused,
                       .why = "a command came before the welcome"};
  return std::nullopt;
}

RankActions RankMachine::handle(const control::Envelope& envelope,
                                const control::Message& message) {
  if (auto refusal = refusal_of(envelope, message)) return only(std::move(*refusal));
  fence_ = envelope.fence;
  return std::visit(
      [&](const auto& m) -> RankActions {
        if constexpr (requires { handle_command(envelope, m); })
          return handle_command(envelope, m);
        else
          return refuse(envelope, ErrorCode::kInvalidInput,
                        fmt::format("an engine does not accept the message {}",
                                    control::message_name(m.kType)));
      },
      message);
}

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::EngineWelcome& message) {
  capabilities_ = message.capabilities & control::kCapabilities;
  return only(AcceptWelcome{.request = envelope, .message = &message});
}

void RankMachine::handle_welcomed() { welcomed_ = true; }

RankActions RankMachine::handle_command(const control::Envelope& /*envelope*/,
                                        const control::Refuse& message) {
  refused_ = true;
  std::string sentence = "the sidecar refuses this engine: " + message.reason;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, message.problems.size()); ++i) {
    const control::Problem& problem = message.problems[i];
    // The reason of the sidecar usually has the first one. Others may have the same detail.
    const std::string said = problem.tensor.empty()
                                 ? problem.detail
                                 : fmt::format("{} ({})", problem.tensor, problem.detail);
    if (!said.empty() && message.reason.find(said) != std::string::npos) continue;
    sentence += problem.tensor.empty() ? fmt::format("; {}", problem.detail)
                                       : fmt::format("; {}: {}", problem.tensor, problem.detail);
  }
  NoteRefusal refusal{.sentence = std::move(sentence), .problem = {}};
  if (!message.problems.empty()) refusal.problem = message.problems.front();
  return only(std::move(refusal));
}

RankActions RankMachine::handle_command(const control::Envelope& /*envelope*/,
                                        const control::ErrorReply& message) const {
  return only(NoteError{"the sidecar reports: " + message.message});
}

// ---- versions ----

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::Prepare& message) const {
  return only(PrepareVersion{.request = envelope, .message = &message});
}

RankActions RankMachine::handle_prepared(const control::Envelope& request, const Version& version,
                                         const Result<>& outcome, bool is_refused) {
  control::Prepared reply{.version = version, .failure = {}};
  if (!outcome) {
    reply.is_refused = is_refused;
    if (!is_refused) return answer_failure(request, reply, outcome.error().message());
    // The engine's own sentence. If the sidecar does not keep the rank for it, its refusal has it.
    reply.failure = outcome.error().message();
    return only(SendReply{.request = request, .message = reply});
  }
  RankActions actions;
  // No sidecar holds this many versions, so drop the oldest one.
  while (prepared_.size() >= limits::kStagedCount) {
    actions.push_back(ForgetVersion{*prepared_.begin()});
    prepared_.erase(prepared_.begin());
  }
  prepared_.insert(version);
  actions.push_back(NotifyPrepared{version});
  actions.push_back(SendReply{.request = request, .message = reply});
  return actions;
}

RankActions RankMachine::handle_command(const control::Envelope& /*envelope*/,
                                        const control::Release& message) {
  prepared_.erase(message.version);
  return only(ForgetVersion{message.version});
}

RankActions RankMachine::handle_command(const control::Envelope& /*envelope*/,
                                        const control::UnmapArenas& /*message*/) {
  return only(ForgetArenas{});
}

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::Ping& /*message*/) {
  return only(SendReply{.request = envelope, .message = control::Pong{}});
}

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::ReadDigests& /*message*/) const {
  return only(ReadTensors{.request = envelope, .version = active_});
}

RankActions RankMachine::handle_command(const control::Envelope& /*envelope*/,
                                        const control::PatchAhead& message) const {
  // The Load that it is for would be refused. It says so itself.
  const bool holds_base = (state_ == RankState::kServing || state_ == RankState::kPaused) &&
                          active_ == message.patch_base && !message.patch_base.none();
  if (!holds_base || !prepared_.contains(message.version)) return {};
  return only(ReadPatchAhead{&message});
}

RankActions RankMachine::handle_command(const control::Envelope& /*envelope*/,
                                        const control::Scrub& message) {
  return only(ScrubWeights{message});
}

RankActions RankMachine::handle_command(const control::Envelope& /*envelope*/,
                                        const control::Abort& message) {
  prepared_.erase(message.version);
  RankActions actions = only(ForgetVersion{message.version});
  // It ends now: no bucket of it follows, and the sidecar frees buffers that came with it after
  // this rank has answered.
  if (load_ && load_->version == message.version && !planted("aborted_load_goes_on"))
    actions.push_back(CancelLoad{});
  return actions;
}

// ---- pause and resume ----

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::Pause& message) {
  if (state_ != RankState::kServing || planted("engine_pause_ignored"))
    return only(SendReply{.request = envelope, .message = control::Paused{.step = step_}});
  if (!identity_.leader)
    return refuse(envelope, ErrorCode::kRefused, "only the leader of a replica can begin a pause");
  pending_pause_ = envelope;
  return only(PauseEngine{.request = envelope,
                          .what = {.mode = message.mode,
                                   .deadline_ms = message.deadline_ms,
                                   .version = message.version,
                                   .bytes = message.bytes,
                                   .caches = message.caches}});
}

RankActions RankMachine::handle_pause_failed(const control::Envelope& request, const Error& error) {
  pending_pause_.reset();
  return refuse(request, error.code(), "the engine could not pause: " + error.message());
}

RankActions RankMachine::handle_report(const RankReport& report) {
  step_ = report.step;
  if (report.what == RankReport::What::kRunning) {
    if (state_ != RankState::kPaused) return {};
    if (auto moved = move(RankState::kServing); !moved)
      return only(NoteError{moved.error().message()});
    return {};
  }
  RankActions actions;
  if (state_ == RankState::kServing)
    if (auto moved = move(RankState::kPaused); !moved)
      actions.push_back(NoteError{moved.error().message()});
  // Only the end of a requested pause answers the request. A rank that stopped by itself reports
  // without a request, and its pause is still outstanding.
  control::Envelope request;
  if (report.what == RankReport::What::kPaused)
    request = std::exchange(pending_pause_, std::nullopt).value_or(control::Envelope{});
  actions.push_back(SendReply{.request = request, .message = control::Paused{.step = step_}});
  return actions;
}

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::Resume& /*message*/) const {
  if (!identity_.leader)
    return refuse(envelope, ErrorCode::kRefused, "only the leader of a replica can be resumed");
  if (state_ != RankState::kServing && state_ != RankState::kPaused)
    return refuse(envelope, ErrorCode::kRefused,
                  fmt::format("a rank that is {} cannot be resumed", rank_state_name(state_)));
  if (state_ == RankState::kPaused || pending_pause_)
    return only(ResumeEngine{.request = envelope, .overtakes_pause = pending_pause_.has_value()});
  return only(SendReply{.request = envelope, .message = control::Resumed{}});
}

RankActions RankMachine::handle_resumed(const control::Envelope& request, const Result<>& outcome,
                                        std::optional<std::uint64_t> paused_at) {
  const auto overtaken = std::exchange(pending_pause_, std::nullopt);
  if (!outcome)
    return refuse(request, outcome.error().code(),
                  "the engine could not resume: " + outcome.error().message());
  RankActions actions;
  // If the pause ended before the resume that overtook it, answer the pause first, under its own
  // request. If it were reported later and without a request, it would say that a serving rank has
  // stopped.
  if (paused_at) step_ = *paused_at;
  if (overtaken && paused_at)
    actions.push_back(SendReply{.request = *overtaken, .message = control::Paused{.step = step_}});
  if (auto moved = move(RankState::kServing); !moved)
    return refuse(request, moved.error().code(), moved.error().message());
  actions.push_back(SendReply{.request = request, .message = control::Resumed{}});
  return actions;
}

// ---- load and commit ----

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::Load& message) const {
  const control::Loaded reply{.version = message.version, .failure = {}, .sums = {}};
  if (state_ == RankState::kServing && !planted("engine_pause_ignored"))
    return answer_failure(envelope, reply, "the rank is serving; pause it first");
  if (!prepared_.contains(message.version))
    return answer_failure(
        envelope, reply,
        fmt::format("version {} has not been prepared", message.version.to_string()));
  // What a patch leaves alone is only right in a memory that holds all of its base.
  if (!message.patch_base.none() && !planted("patch_on_another_version") &&
      (state_ != RankState::kPaused || active_ != message.patch_base))
    return answer_failure(
        envelope, reply,
        fmt::format("the patch begins at {}, but the rank is {}{}", message.patch_base.to_string(),
                    rank_state_name(state_),
                    active_.none() ? std::string() : " and holds " + active_.to_string()));
  return only(MapBuffers{.request = envelope, .message = &message});
}

Result<> RankMachine::begin_load(const control::Envelope& request, const control::Load& load) {
  // Set the mark before the first byte changes. However the process or the load ends from here on,
  // these bytes are never taken for the previous version.
  if (!identity_.adopts && !planted("engine_forgets_taint")) {
    WSYNC_TRY(move(RankState::kTainted));
  } else if (state_ == RankState::kLoaded) {
    // The loaded version was not committed, and an adopting rank still holds the previous one.
    WSYNC_TRY(move(active_.none() ? RankState::kLoading : RankState::kPaused));
  }
  load_ = {.request = request, .version = load.version};
  return {};
}

RankActions RankMachine::handle_buffers_mapped(const control::Envelope& request,
                                               const control::Load& load, const Result<>& outcome,
                                               TimePoint now) {
  // If the buffers cannot be mapped, neither the weights nor a load in progress change.
  const control::Loaded reply{.version = load.version, .failure = {}, .sums = {}};
  if (!outcome) return answer_failure(request, reply, outcome.error().message());
  if (auto begun = begin_load(request, load); !begun)
    return answer_failure(request, reply, begun.error().message());
  const std::int64_t deadline_ms =
      load.deadline_ms == 0 ? limits::kLoadDeadlineMs : load.deadline_ms;
  return only(StartLoad{.version = load.version,
                        .deadline = now + std::chrono::milliseconds(deadline_ms),
                        .copy_threads = load.copy_threads});
}

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::BucketReady& message) const {
  if (load_)
    return only(TakeBucket{.request = envelope, .bucket = message.bucket, .slot = message.slot});
  // A repetition of the last bucket of a completed load needs no copy. Anything else is out of
  // order.
  control::BucketAck ack{.bucket = message.bucket, .failure = {}};
  if (state_ != RankState::kLoaded) ack.failure = "no load is in progress";
  return only(SendReply{.request = envelope, .message = std::move(ack)});
}

RankActions RankMachine::handle_bucket_taken(const control::Envelope& request, std::uint64_t bucket,
                                             const Result<>& outcome) {
  return only(SendReply{
      .request = request,
      .message = control::BucketAck{
          .bucket = bucket, .failure = outcome ? std::string() : outcome.error().message()}});
}

RankActions RankMachine::handle_load_ended(const LoadOutcome& outcome) {
  const Load load = *std::exchange(load_, std::nullopt);
  control::Loaded reply{.version = load.version,
                        .bytes = outcome.bytes,
                        .copy_ns = outcome.copy_ns,
                        .failure = {},
                        .sums = {}};
  if (!outcome.result) return answer_failure(load.request, reply, outcome.result.error().message());
  if (auto moved = move(RankState::kLoaded); !moved)
    return answer_failure(load.request, reply, moved.error().message());
  loaded_ = load.version;
  reply.sums = outcome.sums;
  reply.before = outcome.before;
  reply.written_bytes = outcome.written_bytes;
  RankActions actions = only(NotifyLoaded{.version = load.version, .bytes = outcome.bytes});
  actions.push_back(SendReply{.request = load.request, .message = reply});
  return actions;
}

RankActions RankMachine::handle_command(const control::Envelope& envelope,
                                        const control::Commit& message) const {
  const control::Committed reply{.version = message.version, .failure = {}};
  // The answer to the first Commit was lost.
  if (state_ == RankState::kPaused && active_ == message.version && !message.version.none())
    return only(SendReply{.request = envelope, .message = reply});
  if (loaded_ != message.version)
    return answer_failure(envelope, reply,
                          fmt::format("version {} is not loaded: the rank is {}{}",
                                      message.version.to_string(), rank_state_name(state_),
                                      loaded_ ? " with " + loaded_->to_string() : std::string()));
  return only(CommitEngine{.request = envelope, .version = message.version});
}

RankActions RankMachine::handle_committed(const control::Envelope& request, const Version& version,
                                          const Result<>& outcome) {
  const control::Committed reply{.version = version, .failure = {}};
  // An engine that fails here may have changed part of the weights that it serves.
  if (auto moved = move(outcome ? RankState::kPaused : RankState::kTainted); !moved)
    return answer_failure(request, reply, moved.error().message());
  if (!outcome) return answer_failure(request, reply, outcome.error().message());
  active_ = version;
  RankActions actions = only(ActivateLoaded{});
  actions.push_back(SendReply{.request = request, .message = reply});
  return actions;
}

// ---- loss ----

RankActions RankMachine::handle_loss(const std::string& why) {
  RankActions actions;
  // After a refusal the sidecar has sent the reason, and closes the connection itself.
  if (!refused_)
    actions.push_back(NoteError{
        welcomed_ ? fmt::format("the connection to the sidecar is lost ({})", why) : why});
  welcomed_ = false;
  capabilities_ = 0;
  refused_ = false;
  pending_pause_.reset();
  prepared_.clear();
  load_.reset();
  return actions;
}

}  // namespace wsync::engine
