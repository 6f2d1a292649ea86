#include "inference_side/reference_engine/reference_engine.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <random>
#include <ranges>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/units.h"

namespace wsync::engine::reference {

using control::TakeMode;

namespace {

constexpr std::size_t kVersionsTold = 8;  // the newest versions, at most
constexpr std::uint64_t kChannelBytes = 256 * limits::kKiB;

Result<> check(const ReferenceEngineOptions& options) {
  if (options.replica.empty() || options.replica.size() > limits::kReplicaNameBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the replica's name has {} bytes, 1 to {} are allowed",
                            options.replica.size(), limits::kReplicaNameBytes));
  if (options.world_size == 0 || options.world_size > limits::kReplicaRankCount ||
      options.rank >= options.world_size)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} of {} ranks: a rank is below the number of ranks, which is 1 "
                            "to {}",
                            options.rank, options.world_size, limits::kReplicaRankCount));
  if (options.take == TakeMode::kAdopt && options.load_weights)
    return fail(ErrorCode::kInvalidInput,
                "an engine that adopts versions has no memory for weights of its own, so it must "
                "start without weights");
  if (options.gpu && options.take == TakeMode::kAdopt)
    return fail(ErrorCode::kInvalidInput,
                "weights on a GPU are loaded as pieces or as whole tensors: leave out --adopt, or "
                "keep the weights in host memory (--device host)");
  if (options.gpu && options.generation)
    return fail(ErrorCode::kInvalidInput,
                "an engine that generates computes on the CPU, so its weights are in host memory: "
                "use --device host, or --checkpoint instead of --model");
  if (!options.sidecar_socket.empty()) return check_socket_path(options.sidecar_socket);
  if (!options.load_weights)
    return fail(ErrorCode::kInvalidInput,
                "without a sidecar no weights would ever arrive: load the checkpoint's weights "
                "(--weights load)");
  if (options.world_size > 1 && options.run_directory.empty())
    return fail(ErrorCode::kInvalidInput,
                "without a sidecar the ranks of a replica need a run directory in which they "
                "connect (--run-dir)");
  return {};
}

// The work of an engine that does not generate: each step reads some bytes of every tensor.
class ReadWork final : public StepWork {
 public:
  explicit ReadWork(const HeldModel& model) : model_(model) {}
  bool due() override { return true; }
  // Steps are short, so in every mode the pause takes effect at the next step boundary.
  bool may_stop(PauseMode /*mode*/) override { return true; }
  void resumed() override {}
  void together() override {}
  Result<Reading> run(std::uint64_t step, const Version& version, const collective::Team& /*team*/,
                      TimePoint /*deadline*/, std::string& saw) override {
    return model_.read(version, step, saw);
  }
  void ended(bool /*done*/, const Version& /*version*/, const Reading& /*total*/) override {}

 private:
  const HeldModel& model_;
};

}  // namespace

ReferenceEngine::ReferenceEngine(ReferenceEngineOptions options, EventSink sink)
    : options_(std::move(options)),
      sink_(std::move(sink)),
      gate_(options_.load_weights ? StepGate::holding({}) : StepGate()) {}

ReferenceEngine::~ReferenceEngine() { stop(); }

Result<std::unique_ptr<ReferenceEngine>> ReferenceEngine::create(ReferenceEngineOptions options,
                                                                 EventSink sink) {
  WSYNC_TRY(check(options));
  if (options.run_directory.empty() && !options.sidecar_socket.empty())
    options.run_directory = std::filesystem::path(options.sidecar_socket).parent_path().string();
  std::unique_ptr<ReferenceEngine> engine(new ReferenceEngine(std::move(options), std::move(sink)));
  engine->report_starting();
  WSYNC_TRY(engine->prepare_model());
  if (!engine->options_.sidecar_socket.empty()) WSYNC_TRY(engine->prepare_link());
  WSYNC_TRY(engine->prepare_serving());
  return engine;
}

void ReferenceEngine::report_starting() {
  if (options_.sidecar_socket.empty()) return;
  auto starting = StartingRank::report(options_.sidecar_socket, options_.replica, options_.rank,
                                       options_.world_size);
  // A sidecar may be started later.
  if (starting) starting_.emplace(std::move(*starting));
}

Result<> ReferenceEngine::prepare_model() {
  const auto checkpoint = WSYNC_TRY(CheckpointDirectory::open(options_.checkpoint));
  if (options_.gpu) {
    gpu_ = WSYNC_TRY(device::make_device({.kind = DeviceKind::kCuda,
                                          .index = device::DeviceIndex{options_.device},
                                          .gpu = *options_.gpu}));
  }
  model_ = WSYNC_TRY(HeldModel::create(checkpoint.manifest(), options_.rank, options_.world_size,
                                       options_.take == TakeMode::kAdopt, gpu_.get()));
  if (gpu_)
    say("placed",
        {{"device", gpu_->name()}, {"gpu", gpu_->uuid()}, {"bytes", model_->gpu_bytes()}});
  WSYNC_TRY(prepare_work(checkpoint));
  if (!options_.load_weights) return {};
  return model_->read_checkpoint(checkpoint);
}

Result<> ReferenceEngine::prepare_work(const CheckpointDirectory& checkpoint) {
  if (!options_.generation) {
    work_ = std::make_unique<ReadWork>(*model_);
    return {};
  }
  const GenerationOptions& asked = *options_.generation;
  const auto spec = WSYNC_TRY(moe::load_spec(options_.checkpoint));
  generation::ShardOptions shard{.spec = spec,
                                 .rank = options_.rank,
                                 .world_size = options_.world_size,
                                 .max_step_tokens = asked.max_step_tokens};
  const auto block = generation::block_bytes(shard, checkpoint.manifest());
  if (!block) return fail(block.error().with_context(options_.checkpoint));
  shard.blocks = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(asked.cache_bytes / *block, generation::kMaxBlocks));
  if (shard.blocks == 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{} bytes for keys and values are too few: one block of {} tokens needs {}",
                    asked.cache_bytes, shard.block_tokens, *block));
  const std::uint64_t held = std::uint64_t{shard.blocks} * shard.block_tokens;
  std::uint32_t positions = spec.max_positions;
  if (asked.max_positions != 0) positions = std::min(asked.max_positions, positions);
  if (held < positions)
    log_warning(
        "keys and values of {} tokens fit into {} bytes: no request may be longer, although the "
        "model allows {}; raise --cache for longer requests",
        held, asked.cache_bytes, positions);
  positions = static_cast<std::uint32_t>(std::min<std::uint64_t>(positions, held));
  const auto folder = std::filesystem::path(options_.checkpoint).lexically_normal();
  std::random_device random;
  auto generator = Generator::create(
      {.model = !asked.name.empty()
                    ? asked.name
                    : (folder.has_filename() ? folder : folder.parent_path()).filename().string(),
       .shard = shard,
       .scheduler = {.vocabulary = spec.vocabulary,
                     .max_positions = positions,
                     .blocks = shard.blocks,
                     .block_tokens = shard.block_tokens,
                     .max_step_tokens = asked.max_step_tokens,
                     .max_sequences = asked.max_sequences,
                     .stream = (std::uint64_t{random()} << 32U) | random()},
       .on_switch = asked.on_switch},
      checkpoint.manifest(), *model_);
  if (!generator) return fail(generator.error().with_context(options_.checkpoint));
  generator_ = generator->get();
  work_ = std::move(*generator);
  generator_->connect([this] { serving_->wake(); }, [this] { return state(); });
  return {};
}

Result<> ReferenceEngine::prepare_link() {
  EngineDescription description{.replica = options_.replica,
                                .rank = options_.rank,
                                .world_size = options_.world_size,
                                .leader = options_.rank == 0,
                                .device = options_.device,
                                .take = options_.take,
                                .serving = options_.load_weights,
                                .gpu = gpu_.get()};
  for (std::size_t t = 0; t < model_->tensors().size(); ++t)
    description.tensors.push_back({.description = model_->tensors()[t],
                                   .destination = options_.take == TakeMode::kPieces
                                                      ? model_->memory(t)
                                                      : std::span<std::byte>()});
  link_ = WSYNC_TRY(EngineLink::create(std::move(description), options_.sidecar_socket, *this));
  return {};
}

Result<> ReferenceEngine::prepare_serving() {
  ServingEvents events{.together =
                           [this](std::uint32_t ranks) {
                             say("together", {{"ranks", std::uint64_t{ranks}}});
                             // Without a sidecar nobody else resumes after a lost rank. A follower
                             // with other weights refuses the step.
                             if (!link_) (void)gate_.resume();
                           },
                       .paused =
                           [this](std::uint64_t step, const std::string& why) {
                             say("paused", {{"step", step}, {"why", why}});
                             if (!link_) return;
                             if (why.empty())
                               link_->report_paused(step);
                             else
                               link_->report_stopped(step);
                           },
                       .running =
                           [this](std::uint64_t step) {
                             say("running", {{"step", step}});
                             if (link_) link_->report_running(step);
                           },
                       .torn =
                           [this](std::uint64_t step, const std::string& saw) {
                             say("torn",
                                 {{"step", step}, {"why", saw.empty() ? "in another rank" : saw}});
                           }};
  auto serving =
      Serving::create({.group = {.path = step_socket_path(options_.run_directory, options_.replica),
                                 .world_size = options_.world_size,
                                 .rank = options_.rank,
                                 .channel_bytes = generator_ != nullptr ? kChannelBytes : 0,
                                 .agreement = generator_ != nullptr ? generator_->agreement() : 0},
                       .step_interval = generator_ != nullptr ? std::chrono::microseconds(0)
                                                              : options_.step_interval,
                       .rest = generator_ != nullptr ? 0 : 4},
                      *work_, gate_, std::move(events));
  if (!serving) return fail(std::move(serving).error());
  serving_ = std::move(*serving);
  return {};
}

void ReferenceEngine::start() {
  started_ = true;
  // With weights from the checkpoint the leader starts at once. A follower with other weights
  // refuses the step.
  if (options_.load_weights && options_.rank == 0) (void)gate_.resume();
  serving_->start();
  if (!link_) return;
  const Result<> started = link_->start();
  WSYNC_CHECK(started.has_value(), "an engine is started once");
}

void ReferenceEngine::stop() {
  if (!std::exchange(started_, false)) return;
  if (link_) link_->stop();
  if (generator_ != nullptr) generator_->close();
  serving_->stop();
}

generation::GenerationService* ReferenceEngine::service() const noexcept {
  return options_.rank == 0 ? generator_ : nullptr;
}

Generator::State ReferenceEngine::state() const {
  const StepGate::View view = gate_.view();
  Generator::State state{.has_weights = view.phase != GatePhase::kLoading, .version = view.version};
  if (!state.has_weights)
    state.why = "no version has been committed, or one is being loaded";
  else if (!serving_->together())
    state.why = fmt::format("not all of its {} ranks are connected", options_.world_size);
  else if (view.phase == GatePhase::kPaused)
    state.why = "it is paused for a switch";
  state.serving = state.why.empty();
  return state;
}

void ReferenceEngine::say(std::string name,
                          std::vector<std::pair<std::string, EngineEvent::Value>> fields) {
  const std::lock_guard lock(sink_mutex_);
  sink_({.name = std::move(name), .fields = std::move(fields)});
}

void ReferenceEngine::report_stats() {
  const ServingStats stats = serving_->stats();
  const StepGate::View view = gate_.view();
  std::string versions;  // limited, because a long-lived engine serves many versions
  const std::size_t left_out =
      stats.by_version.size() - std::min(stats.by_version.size(), kVersionsTold);
  const auto first = std::next(stats.by_version.begin(), static_cast<std::ptrdiff_t>(left_out));
  if (left_out > 0) versions = fmt::format("({} earlier)", left_out);
  for (const auto& [version, steps] : std::ranges::subrange(first, stats.by_version.end()))
    versions += fmt::format("{}{}:{}", versions.empty() ? "" : " ", version.to_string(), steps);
  std::string state = "loading";
  if (view.phase == GatePhase::kPaused) state = "paused";
  if (view.phase == GatePhase::kServing) state = "serving";
  say("stats", {{"steps", stats.steps},
                {"versions", versions},
                {"torn", stats.torn},
                {"aborted", stats.aborted},
                {"broken", stats.broken},
                {"last_step", stats.last_step},
                {"last_total", fmt::format("{:016x}", stats.last_total)},
                {"state", state},
                {"active", view.version.to_string()}});
}

// ---- calls of the link ----

Result<> ReferenceEngine::pause(const PauseRequest& request) {
  if (generator_ != nullptr) generator_->expect_switch(request.caches);
  serving_->pause(request.mode);
  return {};
}

Result<> ReferenceEngine::load_begin(const Version& version) {
  const bool copies = options_.take != TakeMode::kAdopt;
  if (auto begun = gate_.begin_load(copies); !begun && !planted("pause_not_honoured")) return begun;
  if (!copies) return {};
  model_->begin_load();
  say("loading", {{"version", version.to_string()}});
  return {};
}

Result<Answer> ReferenceEngine::load_layer(const Version& version, std::uint32_t layer,
                                           std::span<const LayerTensor> tensors) {
  WSYNC_TRY(model_->take_layer(version, tensors));
  if (planted("rank_flips_early") && layer + 1 == model_->layer_count())
    (void)gate_.commit(version);
  say("layer", {{"version", version.to_string()}, {"layer", std::uint64_t{layer}}});
  return Answer::kNow;
}

Result<Answer> ReferenceEngine::commit(const Version& version) {
  // Block steps until commit(): no step may begin after the weights have changed and before their
  // version has.
  WSYNC_TRY(gate_.begin_load(true));
  model_->commit(version);
  if (generator_ != nullptr) generator_->weights_changed();
  WSYNC_TRY(gate_.commit(version));
  say("committed", {{"version", version.to_string()}});
  return Answer::kNow;
}

Result<> ReferenceEngine::resume() {
  WSYNC_TRY(serving_->resume());
  say("resumed");
  return {};
}

Result<> ReferenceEngine::read_tensor(std::uint32_t tensor, std::uint64_t offset,
                                      std::span<std::byte> out) {
  return model_->copy_out(tensor, offset, out);
}

void ReferenceEngine::on_attached() { say("attached"); }

void ReferenceEngine::on_prepared(const Version& version) {
  if (planted("rank_flips_before_the_pause") && options_.rank != 0) model_->commit(version);
  say("prepared", {{"version", version.to_string()}});
}

void ReferenceEngine::on_bucket(const Version& version, std::uint64_t bucket, std::uint64_t of) {
  say("bucket", {{"version", version.to_string()}, {"bucket", bucket}, {"of", of}});
}

void ReferenceEngine::on_loaded(const Version& version, std::uint64_t bytes) {
  say("loaded", {{"version", version.to_string()}, {"bytes", bytes}});
}

}  // namespace wsync::engine::reference
