#include "inference_side/engine_link/engine_link.h"

#include <chrono>
#include <unistd.h>
#include <utility>

#include "inference_side/engine_link/destination.h"
#include "inference_side/engine_link/same_memory.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/units.h"
#include "shared/base/unix_socket.h"
#include "shared/base/weight_limits.h"

namespace wsync::engine {

namespace {

using control::RankState;

// Time that one poll() spends on reading tensors back. It is short compared with a step of the
// engine. It is long enough that an engine that polls once per step reads all tensors before the
// sidecar's deadline.
constexpr std::chrono::milliseconds kReadBack{2};
// A callback of the engine may run meanwhile, which must return soon.
constexpr std::chrono::seconds kSettleDeadline{30};

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// To adopt a version on a GPU, the rank would keep a copy of it there, and two of them during each
// switch: more memory than an engine has that loads into memory of its own.
Result<> check_gpu(const EngineDescription& description) {
  if (description.gpu == nullptr) return {};
  if (description.gpu->kind() != DeviceKind::kCuda)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the engine's description places the rank's weights on {}, which is not a GPU",
                    description.gpu->name()));
  if (description.take == control::TakeMode::kAdopt)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("versions cannot be adopted on {}: only host memory is shared with the "
                            "sidecar, so adopting would keep two copies of the rank's weights on "
                            "the GPU during each switch; take pieces or whole tensors, or borrow",
                            description.gpu->name()));
  return {};
}

Result<> check_casts(const EngineDescription& description) {
  for (const RankTensor& tensor : description.tensors)
    WSYNC_TRY(check_cast(tensor, description.take, description.gpu != nullptr));
  return {};
}

Result<> check_any_layout(const EngineDescription& description) {
  if (!description.any_layout) return {};
  if (!control::maps_version(description.take))
    return fail(ErrorCode::kInvalidInput,
                "only a rank that borrows or adopts can take any layout: for pieces and whole "
                "tensors, describe the tensors");
  if (!description.tensors.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the rank takes any layout, but {} tensors were described for it",
                            description.tensors.size()));
  return {};
}

Result<> check_changed_layers(const EngineDescription& description, const Engine& engine) {
  if (!description.takes_changed_layers) return {};
  const auto refuse = [](std::string_view why) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("changed_layers is for a rank that takes whole tensors or borrows, in "
                            "host memory, and returns their bytes: {}",
                            why));
  };
  if (!is_held_by_engine(description)) return refuse("this one takes pieces, or adopts");
  if (description.gpu != nullptr) return refuse("the weights of this one are on a GPU");
  if (std::string why = engine.why_unreadable(); !why.empty()) return refuse(why);
  return {};
}

}  // namespace

EngineLink::EngineLink(EngineDescription description, Engine& engine)
    : description_(std::move(description)),
      engine_(engine),
      machine_({.replica = description_.replica,
                .rank = description_.rank,
                .leader = description_.leader,
                .adopts = description_.take == control::TakeMode::kAdopt ||
                          (description_.take == control::TakeMode::kBorrow &&
                           planted("borrowed_load_not_marked")),
                .serving = description_.serving}) {
  status_.state = machine_.state();
}

Result<std::unique_ptr<EngineLink>> EngineLink::create(EngineDescription description,
                                                       std::string socket_path, Engine& engine) {
  if (description.replica.empty() || description.replica.size() > limits::kReplicaNameBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the replica's name has {} bytes, 1 to {} are allowed",
                            description.replica.size(), limits::kReplicaNameBytes));
  if (description.world_size == 0 || description.world_size > limits::kReplicaRankCount ||
      description.rank >= description.world_size)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} of {} does not exist; 1 to {} ranks are allowed",
                            description.rank, description.world_size, limits::kReplicaRankCount));
  if (description.tensors.size() > limits::kTensorCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} tensors, at most {} are allowed", description.tensors.size(),
                            limits::kTensorCount));
  WSYNC_TRY(check_gpu(description));
  WSYNC_TRY(check_any_layout(description));
  WSYNC_TRY(check_casts(description));
  WSYNC_TRY(check_changed_layers(description, engine));
  description.same_memory = WSYNC_TRY(find_same_memory(description.tensors));
  std::unique_ptr<EngineLink> link(new EngineLink(std::move(description), engine));
  link->connection_ = WSYNC_TRY(LinkConnection::create(std::move(socket_path), *link));
  link->loader_ = WSYNC_TRY(VersionLoader::create(
      link->description_, engine, [connection = link->connection_.get()] { connection->wake(); }));
  return link;
}

EngineLink::~EngineLink() { stop(); }

Result<> EngineLink::start() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || thread_.joinable())
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("the link of {} rank {} has already been {}; a link can be started only once",
                      description_.replica, description_.rank, stopping_ ? "stopped" : "started"));
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

void EngineLink::run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (auto polled = poll(-1); !polled) {
      note_error(polled.error().message());
      return;
    }
  }
}

void EngineLink::end_thread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  // Null if create() failed halfway.
  if (connection_) connection_->wake();
  if (thread_.joinable()) thread_.join();
}

void EngineLink::stop() {
  had_thread_ = false;  // a suspended link that is stopped does not start again
  end_thread();
  if (loader_) loader_->stop_scrub();
}

Result<> EngineLink::suspend() {
  if (suspended_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} rank {} is suspended already; call resume when its memory is there "
                            "again",
                            description_.replica, description_.rank));
  const bool has_thread = thread_.joinable();
  if (has_thread) end_thread();
  handle_wake();  // an answer that was reported just now
  if (loader_->awaited() || committing_) {
    const std::string what = committing_
                                 ? fmt::format("the commit of {}", committing_->version.to_string())
                                 : fmt::format("the load of {}", loader_->awaited()->to_string());
    if (has_thread) {
      const std::lock_guard lock(mutex_);
      stopping_ = false;
      thread_ = std::thread([this] { run(); });
    }
    return fail(ErrorCode::kBusy,
                fmt::format("{} rank {} has not answered {} yet: report it before the memory is "
                            "given away",
                            description_.replica, description_.rank, what));
  }
  suspending_ = true;
  connection_->suspend("the engine is suspended");
  suspending_ = false;
  if (!planted("suspended_keeps_version")) machine_.handle_suspended();
  loader_->forget_all();
  publish_layouts();
  publish_status();
  suspended_ = true;
  had_thread_ = has_thread;
  return {};
}

Result<> EngineLink::move_destination(std::size_t tensor, std::byte* address) {
  const auto refuse = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} rank {}: the memory of tensor {} cannot be moved: {}",
                            description_.replica, description_.rank, tensor, why));
  };
  if (!suspended_) return refuse("the rank is not suspended");
  if (description_.take != control::TakeMode::kPieces)
    return refuse("the rank takes no pieces, so it has no destinations");
  if (tensor >= description_.tensors.size())
    return refuse(fmt::format("the rank has {} tensors", description_.tensors.size()));
  auto& destination = description_.tensors[tensor].destination;
  if (address == nullptr && !destination.empty()) return refuse("the new address is NULL");
  destination = {address, destination.size()};
  return {};
}

Result<> EngineLink::resume() {
  if (!suspended_)
    return fail(ErrorCode::kInvalidInput, fmt::format("{} rank {} is not suspended",
                                                      description_.replica, description_.rank));
  // What was checked of its memory at the beginning need not hold for the memory that it has now.
  description_.same_memory = WSYNC_TRY(find_same_memory(description_.tensors));
  WSYNC_TRY(loader_->check_memory());
  suspended_ = false;
  {
    // Reports of the time before: the rank has not paused, and serves nothing.
    const std::lock_guard lock(mutex_);
    reports_.clear();
    late_answers_.clear();
    if (had_thread_) stopping_ = false;
  }
  connection_->resume();
  if (std::exchange(had_thread_, false)) thread_ = std::thread([this] { run(); });
  return {};
}

Result<> EngineLink::wait_until_settled() {
  std::unique_lock lock(mutex_);
  // What is handled next begins with the reports, so a load cannot come before them any more.
  const auto is_settled = [this] {
    return !is_handling_ || served_by_ == std::this_thread::get_id() ||
           status_.state == RankState::kTainted || status_.state == RankState::kLoaded;
  };
  if (settled_.wait_for(lock, kSettleDeadline, is_settled)) return {};
  return fail(
      ErrorCode::kDeadline,
      fmt::format("{} rank {} must not step: its link has not answered the sidecar for {} s, "
                  "so a load may begin at any time",
                  description_.replica, description_.rank, kSettleDeadline.count()));
}

Result<> EngineLink::poll(int timeout_ms) {
  {
    const std::lock_guard lock(mutex_);
    served_by_ = std::this_thread::get_id();
  }
  const Result<> polled = connection_->poll(timeout_ms);
  {
    const std::lock_guard lock(mutex_);
    is_handling_ = false;
  }
  settled_.notify_all();
  WSYNC_TRY(polled);
  if (reading_)
    read_tensors();
  else
    loader_->read_scrub([this] { return connection_->has_event(); });
  report_scrubbed();
  connection_->flush();
  connection_->wake_at(loader_->scrub_due());
  return {};
}

// ---- reports of the engine ----

void EngineLink::report(RankReport report) {
  {
    const std::lock_guard lock(mutex_);
    reports_.push_back(report);
  }
  connection_->wake();
}

void EngineLink::report_paused(std::uint64_t step) {
  report({.what = RankReport::What::kPaused, .step = step});
}
void EngineLink::report_stopped(std::uint64_t step) {
  report({.what = RankReport::What::kStopped, .step = step});
}
void EngineLink::report_running(std::uint64_t step) {
  report({.what = RankReport::What::kRunning, .step = step});
}

void EngineLink::report_late(LateAnswer answer) {
  {
    const std::lock_guard lock(mutex_);
    late_answers_.push_back(std::move(answer));
  }
  connection_->wake();
}

void EngineLink::report_loaded(const Version& version, Result<> result) {
  report_late({.call = LateAnswer::Call::kLoad, .version = version, .result = std::move(result)});
}
void EngineLink::report_committed(const Version& version, Result<> result) {
  report_late({.call = LateAnswer::Call::kCommit, .version = version, .result = std::move(result)});
}

void EngineLink::handle_wake() {
  // Release the lock before handling reports: an answer calls the engine, which may report again.
  std::deque<RankReport> reports;
  std::deque<LateAnswer> late;
  {
    const std::lock_guard lock(mutex_);
    reports.swap(reports_);
    is_handling_ = true;  // and what the sidecar has sent; until the end of poll()
    late.swap(late_answers_);
  }
  for (const RankReport& report : reports) execute(machine_.handle_report(report));
  for (LateAnswer& answer : late) handle_late(std::move(answer));
}

void EngineLink::handle_late(LateAnswer answer) {
  const auto awaited = answer.call == LateAnswer::Call::kLoad ? loader_->awaited()
                       : committing_                          ? std::optional(committing_->version)
                                                              : std::nullopt;
  if (awaited != answer.version)
    return note_error(fmt::format(
        "the engine reports that it has {} {}, but {}",
        answer.call == LateAnswer::Call::kLoad ? "loaded" : "committed", answer.version.to_string(),
        awaited ? fmt::format("{} is awaited", awaited->to_string()) : "nothing is awaited"));
  if (answer.call == LateAnswer::Call::kLoad) {
    // The sidecar may have given this load up meanwhile, and may have sent another one.
    const auto postponed = std::exchange(postponed_, std::nullopt);
    const auto buckets = std::exchange(postponed_buckets_, {});
    if (!postponed && machine_.loading() == answer.version) {
      // Only where layers come one by one, on a GPU.
      if (answer.result && !loader_->awaited_is_complete())
        answer.result = fail(ErrorCode::kInvalidInput,
                             fmt::format("the engine reports that it has loaded {} before it was "
                                         "given all of its layers",
                                         answer.version.to_string()));
      return end_load(loader_->end_load(std::move(answer.result)));
    }
    loader_->drop_awaited();
    if (postponed && machine_.loading() == postponed->version) {
      start_load(*postponed);
      for (const TakeBucket& bucket : buckets) take_bucket(bucket);
    }
    return;
  }
  const CommitEngine commit = *std::exchange(committing_, std::nullopt);
  if (machine_.state() == RankState::kLoaded)
    execute(machine_.handle_committed(commit.request, commit.version, answer.result));
}

std::shared_ptr<const EngineLayout> EngineLink::layout(const Version& version) const {
  const std::lock_guard lock(mutex_);
  const auto found = layouts_.find(version);
  return found == layouts_.end() ? nullptr : found->second;
}

void EngineLink::publish_layouts() {
  auto layouts = loader_->layouts();
  const std::lock_guard lock(mutex_);
  layouts_.swap(layouts);
}

LinkStatus EngineLink::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void EngineLink::publish_status() {
  loader_->set_serving(machine_.state() == RankState::kServing && machine_.welcomed() &&
                       !machine_.is_asked_to_pause());
  const std::lock_guard lock(mutex_);
  status_.state = machine_.state();
  status_.active = machine_.active();
  status_.copied_bytes = loader_->copied_bytes();
  settled_.notify_all();
}

void EngineLink::note_refusal(const NoteRefusal& refusal) {
  const bool is_said = std::exchange(last_refusal_, refusal.sentence) == refusal.sentence;
  if (!is_said)
    log_warning("{} rank {}: {}; trying again, less and less often", description_.replica,
                description_.rank, refusal.sentence);
  {
    const std::lock_guard lock(mutex_);
    status_.last_error = refusal.sentence;
    ++status_.refusals;
    status_.refusal = {.number = status_.refusal.number + (is_said ? 0U : 1U),
                       .holds = true,
                       .sentence = refusal.sentence,
                       .problem = refusal.problem};
  }
  connection_->refused();
}

void EngineLink::note_error(const std::string& sentence) {
  last_refusal_.clear();
  const std::lock_guard lock(mutex_);
  // Log an error once, even if the attempt is repeated many times.
  if (std::exchange(status_.last_error, sentence) != sentence)
    log_warning("{} rank {}: {}; trying again", description_.replica, description_.rank, sentence);
}

// ---- callbacks of the connection ----

std::pair<control::Envelope, control::EngineHello> EngineLink::make_hello() {
  control::EngineHello hello{.world_size = description_.world_size,
                             .leader = description_.leader,
                             .device = description_.device,
                             .pid = static_cast<std::uint32_t>(::getpid()),
                             .take = description_.take,
                             .state = machine_.state(),
                             .active = machine_.active(),
                             .step = machine_.step()};
  hello.has_controller = description_.has_controller;
  hello.any_layout = description_.any_layout;
  hello.takes_patches = takes_patches(description_) && !description_.takes_changed_layers;
  if (description_.takes_changed_layers)
    hello.capabilities |= bits(control::Capability::kChangedLayers);
  hello.not_scrubbed = why_not_scrubbed(description_, engine_);
  hello.tensors.reserve(description_.tensors.size());
  if (description_.gpu != nullptr) hello.gpu = description_.gpu->uuid();
  for (const auto& tensor : description_.tensors) hello.tensors.push_back(tensor.description);
  return {machine_.answer_to({}), std::move(hello)};
}

void EngineLink::handle_frame(control::Frame frame) {
  execute(machine_.handle(frame.envelope, frame.message), frame.fds);
}

void EngineLink::handle_malformed(const std::optional<control::Envelope>& envelope,
                                  const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    ++status_.refusals;
  }
  if (envelope)
    execute({SendRefusal{.request = *envelope, .code = error.code(), .why = error.message()}});
}

void EngineLink::handle_loss(const std::string& why) {
  const RankActions actions = machine_.handle_loss(why);
  if (!suspending_) execute(actions);  // it only tells of a loss, which this is not
  reading_.reset();
  postpone(std::nullopt);
  loader_->release(machine_.state() == RankState::kLoaded);
  if (planted("engine_resumes_alone") && machine_.state() == RankState::kPaused) {
    (void)engine_.resume();
    execute(machine_.handle_report({.what = RankReport::What::kRunning, .step = machine_.step()}));
  }
  const std::lock_guard lock(mutex_);
  status_.attached = false;
}

// ---- actions of the machine ----

void EngineLink::execute(const RankActions& actions, std::span<const UniqueFd> fds) {
  // Publish the status first, so that a process that has received an answer never sees the older
  // state.
  publish_status();
  const auto execute_one = Overloaded{
      [&](const SendReply& a) { connection_->send(machine_.answer_to(a.request), a.message); },
      [&](const SendRefusal& a) {
        {
          const std::lock_guard lock(mutex_);
          ++status_.refusals;
          status_.last_error = a.why;
        }
        log_warning("{} rank {}: refused: {}", description_.replica, description_.rank, a.why);
        connection_->send(machine_.answer_to(a.request),
                          control::ErrorReply{.code = a.code, .message = a.why});
      },
      [&](const NoteError& a) { note_error(a.sentence); },
      [&](const NoteRefusal& a) { note_refusal(a); },
      [&](const AcceptWelcome& a) { accept_welcome(a, fds); },
      [&](const PrepareVersion& a) { prepare(a, fds); },
      [&](const NotifyPrepared& a) {
        last_refusal_.clear();
        engine_.on_prepared(a.version);
      },
      [&](const ForgetVersion& a) {
        loader_->forget(a.version);
        publish_layouts();
      },
      [&](const ForgetArenas&) { loader_->forget_arenas(); },
      [&](const PauseEngine& a) {
        if (auto paused = engine_.pause(a.what); !paused)
          execute(machine_.handle_pause_failed(a.request, paused.error()));
      },
      [&](const MapBuffers& a) {
        const auto mapped = map_buffers(*a.message, fds);
        execute(machine_.handle_buffers_mapped(a.request, *a.message, mapped, now()));
        loader_->give_up_claim();
        loader_->drop_patch();
      },
      [&](const StartLoad& a) { start_load(a); },
      [&](const CancelLoad&) {
        postpone(std::nullopt);
        end_load(loader_->cancel());
      },
      [&](const TakeBucket& a) { take_bucket(a); },
      [&](const NotifyLoaded& a) { engine_.on_loaded(a.version, a.bytes); },
      [&](const CommitEngine& a) { commit(a); },
      [&](const ActivateLoaded&) {
        loader_->activate();
        publish_layouts();
      },
      [&](const ResumeEngine& a) { resume_engine(a); },
      [&](const ReadTensors& a) { reading_.emplace(a.request, a.version); },
      [&](const ReadPatchAhead& a) {
        if (const auto read = loader_->read_ahead(*a.message, fds); !read)
          log_debug("{} rank {}: {} (before the pause)", description_.replica, description_.rank,
                    read.error().message());
      },
      [&](const ScrubWeights& a) { loader_->scrub(a.message); },
  };
  for (const RankAction& action : actions) std::visit(execute_one, action);
  loader_->unmap_patches();
}

void EngineLink::accept_welcome(const AcceptWelcome& action, std::span<const UniqueFd> fds) {
  if (const auto mapped = loader_->buffers().map(*action.message, fds); !mapped) {
    execute({SendRefusal{.request = action.request,
                         .code = mapped.error().code(),
                         .why = mapped.error().message()}});
    return connection_->disconnect(mapped.error().message());
  }
  machine_.handle_welcomed();
  connection_->confirm();
  {
    const std::lock_guard lock(mutex_);
    status_.attached = true;
    status_.last_error.clear();
    status_.refusal.holds = false;
  }
  engine_.on_attached();
}

void EngineLink::prepare(const PrepareVersion& action, std::span<const UniqueFd> fds) {
  const Version version = action.message->version;
  auto outcome = loader_->prepare(*action.message, fds);
  publish_layouts();
  const bool is_prepared = outcome.has_value();
  if (is_prepared) outcome = engine_.check_version(version);
  if (is_prepared && !outcome) {
    loader_->forget(version);
    publish_layouts();
  }
  const bool is_refused = is_prepared && !outcome && !planted("refusal_not_reported");
  execute(machine_.handle_prepared(action.request, version, outcome, is_refused));
}

Result<> EngineLink::map_buffers(const control::Load& load, std::span<const UniqueFd> fds) {
  // Until the engine has answered, nobody knows which weights it has.
  if (committing_)
    return fail(ErrorCode::kBusy,
                fmt::format("the engine has not reported yet that it has committed {}",
                            committing_->version.to_string()));
  WSYNC_TRY(loader_->claim(load.version));
  if (!load.patch_base.none()) return loader_->map_patch(load, fds);
  return loader_->buffers().map(load, fds);
}

void EngineLink::postpone(std::optional<StartLoad> load) {
  postponed_ = load;
  postponed_buckets_.clear();
}

void EngineLink::start_load(const StartLoad& action) {
  if (loader_->awaited() && !planted("late_load_overtaken")) {
    postpone(action);
    return loader_->give_up_awaited();
  }
  const auto ended = loader_->start_load(action.version, action.deadline, action.copy_threads);
  if (ended) end_load(*ended);
}

void EngineLink::commit(const CommitEngine& action) {
  if (committing_) {
    committing_->request = action.request;
    return;
  }
  const auto answer = engine_.commit(action.version);
  if (answer && *answer == Answer::kLater && !planted("late_commit_not_awaited"))
    committing_ = action;
  else
    execute(machine_.handle_committed(action.request, action.version,
                                      answer ? Result<>{} : fail(answer.error())));
}

void EngineLink::take_bucket(const TakeBucket& action) {
  const bool early = planted("engine_ack_before_copy");
  if (early) execute(machine_.handle_bucket_taken(action.request, action.bucket, {}));
  if (!machine_.loading()) return;
  if (postponed_) {
    postponed_buckets_.push_back(action);
    return;
  }
  const auto outcome = loader_->take_bucket(action.bucket, action.slot);
  if (!early) execute(machine_.handle_bucket_taken(action.request, action.bucket, outcome.result));
  // Sending the bucket acknowledgement may have detected the loss of the sidecar, which ends the
  // load.
  if (outcome.ends_load && machine_.loading()) end_load(loader_->end_load(outcome.result));
}

void EngineLink::resume_engine(const ResumeEngine& action) {
  const auto resumed = engine_.resume();
  // The engine may have paused after all, just before it resumed. That report is still in the queue
  // and belongs to the overtaken pause. If it were handled later, it would look like a new stop.
  std::optional<std::uint64_t> paused_at;
  if (resumed && action.overtakes_pause) {
    const std::lock_guard lock(mutex_);
    std::erase_if(reports_, [&](const RankReport& report) {
      if (report.what != RankReport::What::kPaused) return false;
      paused_at = report.step;
      return true;
    });
  }
  execute(machine_.handle_resumed(action.request, resumed, paused_at));
}

// Read more than one tensor in each poll(): an engine that polls once per step would otherwise need
// as many steps as it has tensors, which is longer than the sidecar waits.
void EngineLink::read_tensors() {
  const TimePoint until = now() + kReadBack;
  do {
    Result<> outcome = machine_.check_readable(reading_->version());
    bool complete = false;
    if (outcome) {
      const auto read = reading_->read_some(loader_->held());
      complete = read.value_or(false);
      if (!read) outcome = fail(read.error());
    }
    if (complete || !outcome) {
      ReadBack done = *std::exchange(reading_, std::nullopt);
      return connection_->send(machine_.answer_to(done.request()), std::move(done).finish(outcome));
    }
  } while (now() < until && !connection_->has_event());
  // The next poll() reads the rest and must not wait.
  connection_->wake();
}

void EngineLink::report_scrubbed() {
  if (!machine_.welcomed()) return;
  if (auto report = loader_->take_scrubbed())
    connection_->send(machine_.answer_to({}), *std::move(report));
}

}  // namespace wsync::engine
